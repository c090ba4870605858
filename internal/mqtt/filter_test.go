package mqtt

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/eclipse/paho.golang/packets"
)

var errCut = errors.New("cut")

// chunks is a connection that delivers a stream in pieces, and then an error.
type chunks struct {
	stream []byte
	sizes  []byte // of the pieces, in turn; 0 is a read of nothing
	turn   int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.stream) == 0 {
		return 0, errCut
	}
	size := len(c.stream)
	if len(c.sizes) > 0 {
		size = int(c.sizes[c.turn%len(c.sizes)])
		c.turn++
	}
	n := copy(p, c.stream[:min(size, len(c.stream))])
	c.stream = c.stream[n:]
	return n, nil
}

// checks is what the Filters of these tests ask of a packet: PINGREQ has no flags.
func checks(packet []byte) error {
	if packet[0]&0xf0 == 0xc0 && packet[0] != 0xc0 {
		return errRefused
	}
	return nil
}

var errRefused = errors.New("refused")

// divide divides a stream as a Filter must: its packets, and the error that ends it.
func divide(stream []byte, limit, first int) (passed [][]byte, end error) {
	for begun := false; ; begun = true {
		most := limit
		if !begun && first > 0 && (limit == 0 || first < limit) {
			most = first
		}
		size, _, ok := Size(stream)
		switch {
		case Broken(stream):
			return passed, ErrHeader
		case ok && most > 0 && size > most:
			return passed, &TooLargeError{Size: size, Limit: most}
		case !ok || size > len(stream):
			return passed, errCut
		case checks(stream[:size]) != nil:
			return passed, errRefused
		}
		passed = append(passed, stream[:size])
		stream = stream[size:]
	}
}

// checkFilter reads the packets of a stream that arrives in pieces.
func checkFilter(t *testing.T, stream, sizes []byte, limit, first int) {
	t.Helper()
	want, wantErr := divide(stream, limit, first)
	held, arrived := 0, 0
	source := &chunks{stream: stream, sizes: sizes}
	var filter *Filter
	filter = &Filter{Source: readerFunc(func(p []byte) (int, error) {
		if held > 0 {
			t.Error("what was held back is not sent before the filter waits for more")
		}
		if room := max(leastBuffer, bufferSize, 2*arrived); len(filter.buffer) > room {
			t.Errorf("the buffer has %d bytes, and only %d have arrived", len(filter.buffer), arrived)
		}
		n, err := source.Read(p)
		arrived += n
		return n, err
	}), Limit: limit, First: first, Check: checks, Pause: func() { held = 0 }}
	var got [][]byte
	for {
		part, err := filter.Next()
		if err == nil {
			got = append(got, bytes.Clone(part))
			held++
			continue
		}
		if !reflect.DeepEqual(err, wantErr) {
			t.Errorf("the error is %v; want %v", err, wantErr)
		}
		if held > 0 {
			t.Error("what was held back is not sent at the end")
		}
		if part, again := filter.Next(); len(part) > 0 || again != err {
			t.Errorf("another read brings %d bytes and %v, after %v", len(part), again, err)
		}
		break
	}
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("passed on %d packets, %.40x…\nwant %d, %.40x…", len(got), got, len(want), want)
	}
}

// drain reads all packets, and returns what ends that.
func drain(filter *Filter) error {
	for {
		if _, err := filter.Next(); err != nil {
			return err
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAFilterPassesOnOnlyCheckedPackets(t *testing.T) {
	m := request()
	publish, _ := m.Append(nil)
	puback := AppendPuback(nil, 7)
	ping := []byte{0xc0, 0}
	m.Payload = make([]byte, bufferSize)
	long, _ := m.Append(nil)
	m.Payload = make([]byte, 2*bufferSize-len(long))
	full, _ := m.Append(nil)
	if len(full) != bufferSize {
		t.Fatalf("the packet that is to fill the buffer has %d bytes", len(full))
	}
	broken := []byte{0x30, 0xff, 0xff, 0xff, 0xff, 1}
	for name, stream := range map[string][]byte{
		"nothing":                         nil,
		"one":                             publish,
		"one of two bytes":                ping,
		"a mixture":                       slices.Concat(publish, ping, puback, publish, publish, ping),
		"many":                            bytes.Repeat(publish, 50),
		"the longest":                     slices.Concat(ping, full, publish),
		"one too long":                    slices.Concat(publish, long, publish),
		"a packet cut off":                slices.Concat(publish, publish[:20]),
		"a header cut off":                slices.Concat(publish, long[:1]),
		"a long packet cut off":           long[:bufferSize+1],
		"something else, and no more":     slices.Concat(publish, broken, publish),
		"a packet that is refused":        slices.Concat(publish, ping, []byte{0xc1, 0}, publish),
		"only one that is refused":        []byte{0xc1, 0},
		"a large one that is refused":     slices.Concat([]byte{0xc1, 0x80, 0x40}, make([]byte, 0x2000)),
		"a length of too many bytes":      []byte{0xc0, 0x80, 0},
		"much larger than what arrives":   slices.Concat(ping, []byte{0x30, 0xff, 0xff, 0xff, 0x7f}, long),
		"large ones and small ones":       slices.Concat(ping, long, long, ping, bytes.Repeat(publish, 9), long),
		"something else in place of MQTT": []byte("\xff\xff\xff\xff\xffGET / HTTP/1.1\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			for _, sizes := range [][]byte{nil, {1}, {3, 0, 50}, {255}} {
				for _, limit := range []int{0, bufferSize, len(publish), len(publish) - 1} {
					for _, first := range []int{0, 1, len(publish)} {
						checkFilter(t, stream, sizes, limit, first)
					}
				}
			}
		})
	}
}

// A TLS connection gives the end together with the last bytes where the client's DISCONNECT
// came with them.
func TestAFilterPausesAfterWhatCameWithTheEnd(t *testing.T) {
	pauses := 0
	filter := &Filter{Source: iotest.DataErrReader(bytes.NewReader(AppendPuback(nil, 7))), Pause: func() { pauses++ }}
	if _, err := filter.Next(); err != nil {
		t.Fatal(err)
	}
	before := pauses
	if _, err := filter.Next(); err != io.EOF || pauses == before {
		t.Errorf("%d pauses after the packet (%v)", pauses-before, err)
	}
}

func FuzzFilter(f *testing.F) {
	m := request()
	publish, _ := m.Append(nil)
	f.Add(slices.Concat(publish, []byte{0xc0, 0}, AppendPuback(nil, 7)), []byte{3, 200})
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0xff, 1, 0x30, 0}, []byte{1})
	f.Add(slices.Concat([]byte{0x30, 0x81, 0x20}, make([]byte, 5000)), []byte{255})
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		if !slices.ContainsFunc(sizes, func(size byte) bool { return size > 0 }) {
			sizes = nil // it would never end
		}
		for _, limit := range []int{0, 2 + len(stream)/2} {
			checkFilter(t, stream, sizes, limit, len(stream)/3)
		}
	})
}

func TestInvariant44WhatIsNoMessageMayHaveALimitOfItsOwn(t *testing.T) {
	packet := func(kind byte, size int) []byte { // of size bytes; the length of its header must be 4
		return append(AppendVariable([]byte{kind << 4}, size-4), make([]byte, size-4)...)
	}
	const publish, other = 40_000, 20_000
	for name, test := range map[string]struct {
		packets [][]byte
		want    error
	}{
		"the largest":          {[][]byte{packet(packets.SUBACK, other), packet(packets.PUBLISH, publish)}, io.EOF},
		"a message":            {[][]byte{packet(packets.SUBACK, other), packet(packets.PUBLISH, publish+1)}, &TooLargeError{publish + 1, publish}},
		"another packet":       {[][]byte{packet(packets.SUBACK, 20_000), packet(packets.SUBACK, other+1)}, &TooLargeError{other + 1, other}},
		"a message that opens": {[][]byte{packet(packets.PUBLISH, other+1)}, &TooLargeError{other + 1, other}},
	} {
		t.Run(name, func(t *testing.T) {
			filter := &Filter{Source: bytes.NewReader(slices.Concat(test.packets...)), Limit: publish, Others: other}
			for _, err := filter.Next(); ; _, err = filter.Next() {
				if err == nil {
					continue
				}
				if !reflect.DeepEqual(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				return
			}
		})
	}
}

func TestTheBufferOfAFilterIsAsLargeAsWhatArrivesAndSmallAgainAfterwards(t *testing.T) {
	large := slices.Concat([]byte{0x30, 0x80, 0x80, 0x40}, make([]byte, 1<<20))
	ping := []byte{0xc0, 0}
	waits := make(map[string]int)
	var filter *Filter
	streams := []struct {
		name   string
		stream io.Reader
	}{
		{"at first", bytes.NewReader(nil)},
		{"after a small packet", bytes.NewReader(ping)},
		{"where a large packet begins", bytes.NewReader(large[:4])},
		{"within a large packet", bytes.NewReader(large[4:1000])},
		{"in the midst of a large packet", bytes.NewReader(large[1000 : 600<<10])},
		{"after a large packet", bytes.NewReader(large[600<<10:])},
	}
	source := readerFunc(func(p []byte) (int, error) {
		for len(streams) > 0 {
			if n, _ := streams[0].stream.Read(p); n > 0 {
				return n, nil
			}
			waits[streams[0].name] = len(filter.buffer)
			streams = streams[1:]
		}
		return 0, io.EOF
	})
	filter = &Filter{Source: source}
	if err := drain(filter); err != io.EOF {
		t.Fatal(err)
	}
	for name, most := range map[string]int{
		"at first": leastBuffer, "after a small packet": leastBuffer, "where a large packet begins": leastBuffer,
		"within a large packet": 2048, "in the midst of a large packet": 1 << 20, "after a large packet": bufferSize,
	} {
		if waits[name] == 0 || waits[name] > most {
			t.Errorf("%s it has %d bytes; want at most %d", name, waits[name], most)
		}
	}
}

func TestALargePacketNeedsRoomAndGivesItBack(t *testing.T) {
	const size = 100_000
	packet := append([]byte{0x30, 0xa0, 0x8d, 0x06}, make([]byte, size)...)
	errFull := errors.New("full")
	for name, test := range map[string]struct {
		source io.Reader
		limit  int
		want   error
	}{
		"there is quota":            {bytes.NewReader(append(bytes.Clone(packet), packet...)), size, io.EOF},
		"there is none":             {bytes.NewReader(packet), size / 2, errFull},
		"the connection breaks":     {bytes.NewReader(packet[:size/2]), size, io.EOF},
		"what follows is not MQTT":  {bytes.NewReader(append(bytes.Clone(packet), 0x30, 0xff, 0xff, 0xff, 0xff)), size, ErrHeader},
		"small ones need none":      {bytes.NewReader(bytes.Repeat([]byte{0x30, 3, 0, 1, 'a'}, 10_000)), 0, io.EOF},
		"the next packet is small":  {io.MultiReader(bytes.NewReader(packet), bytes.NewReader([]byte{0x30, 3, 0, 1, 'a'})), size, io.EOF},
		"one is small before it is": {io.MultiReader(bytes.NewReader([]byte{0x30, 3, 0, 1, 'a'}), bytes.NewReader(packet)), size, io.EOF},
	} {
		taken, most := 0, 0
		f := &Filter{Source: test.source, Reserve: func(n int) error {
			if taken+n > test.limit {
				return errFull
			}
			taken += n
			most = max(most, taken)
			return nil
		}}
		err := drain(f)
		if !errors.Is(err, test.want) || taken != 0 {
			t.Errorf("%s: %v, and a quota of %d bytes is left over", name, err, taken)
		}
		if test.limit == size && test.want == io.EOF && most == 0 {
			t.Errorf("%s: it never asked for quota", name)
		}
	}
}
