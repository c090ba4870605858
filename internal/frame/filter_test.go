package frame

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
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

// divide divides a stream as a Filter must: what is taken, what is passed on, and how
// long the packet is that is over the limit and ends it; 0 if none is, and -1 if there is
// no telling.
func divide(stream []byte, limit int, takes func([]byte) bool) (taken [][]byte, passed []byte, over int) {
	for len(stream) > 0 {
		size, _, ok := Size(stream)
		if ok && limit > 0 && size > limit {
			return taken, passed, size
		}
		if !ok && limit > 0 && len(stream) >= maxHeader {
			return taken, passed, -1
		}
		if !ok || size > len(stream) {
			return taken, append(passed, stream...), 0
		}
		if packet := stream[:size]; size <= bufferSize && takes(packet) {
			taken = append(taken, packet)
		} else {
			passed = append(passed, packet...)
		}
		stream = stream[size:]
	}
	return taken, passed, 0
}

func checkFilter(t *testing.T, stream, sizes []byte, readSize, limit int, takes func([]byte) bool) {
	t.Helper()
	wantTaken, wantPassed, over := divide(stream, limit, takes)
	var taken [][]byte
	held := 0
	source := &chunks{stream: stream, sizes: sizes}
	filter := NewFilter(readerFunc(func(p []byte) (int, error) {
		if held > 0 {
			t.Error("what was held back is not sent before the filter waits for more")
		}
		return source.Read(p)
	}), limit, func(packet []byte) bool {
		if !takes(packet) {
			return false
		}
		taken = append(taken, bytes.Clone(packet))
		held++
		return true
	}, func() { held = 0 })
	var passed []byte
	p := make([]byte, readSize)
	for {
		n, err := filter.Read(p)
		passed = append(passed, p[:n]...)
		if n > 0 && held > 0 {
			t.Error("what was held back is not sent before a packet is passed on")
		}
		if err != nil {
			var tooLarge *TooLargeError
			switch isTooLarge := errors.As(err, &tooLarge); {
			case over == 0 && err != errCut:
				t.Errorf("the connection's error is %v", err)
			case over < 0 && err != ErrHeader:
				t.Errorf("the error is %v, where no packet begins", err)
			case over > 0 && (!isTooLarge || *tooLarge != TooLargeError{Size: over, Limit: limit}):
				t.Errorf("the error is %v; a packet has %d bytes, and the limit is %d", err, over, limit)
			}
			if _, again := filter.Read(p); again != err {
				t.Errorf("another read fails with %v, after %v", again, err)
			}
			break
		}
	}
	if !bytes.Equal(passed, wantPassed) {
		t.Errorf("passed on %d bytes, %.40x…\nwant %d, %.40x…", len(passed), passed, len(wantPassed), wantPassed)
	}
	if !slices.EqualFunc(taken, wantTaken, bytes.Equal) {
		t.Errorf("took %d packets, %.40x…\nwant %d, %.40x…", len(taken), taken, len(wantTaken), wantTaken)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAFilterTakesPacketsAndPassesOnTheRest(t *testing.T) {
	m := request()
	publish, _ := m.Append(nil)
	puback := AppendPuback(nil, 7)
	ping := []byte{0xc0, 0}
	m.Payload = make([]byte, bufferSize)
	long, _ := m.Append(nil)
	m.Payload = make([]byte, 2*bufferSize-m.Size())
	full, _ := m.Append(nil)
	if len(full) != bufferSize {
		t.Fatalf("the packet that is to fill the buffer has %d bytes", len(full))
	}
	broken := []byte{0x30, 0xff, 0xff, 0xff, 0xff, 1}
	publishes := func(packet []byte) bool { return Type(packet) == TypePublish }
	for name, test := range map[string]struct {
		stream []byte
		takes  func([]byte) bool
	}{
		"nothing":                         {nil, publishes},
		"one that is taken":               {publish, publishes},
		"one that is not":                 {ping, publishes},
		"a mixture":                       {slices.Concat(publish, ping, puback, publish, publish, ping), publishes},
		"many":                            {bytes.Repeat(publish, 50), publishes},
		"the longest":                     {slices.Concat(ping, full, publish), publishes},
		"one too long":                    {slices.Concat(publish, long, publish), publishes},
		"a packet cut off":                {slices.Concat(publish, publish[:20]), publishes},
		"a header cut off":                {slices.Concat(publish, long[:1]), publishes},
		"a long packet cut off":           {long[:bufferSize+1], publishes},
		"something else, and no more":     {slices.Concat(publish, broken, publish), publishes},
		"something else in place of MQTT": {[]byte("\xff\xff\xff\xff\xffGET / HTTP/1.1\r\n\r\n"), publishes},
	} {
		t.Run(name, func(t *testing.T) {
			for _, sizes := range [][]byte{nil, {1}, {3, 0, 50}, {255}} {
				for _, readSize := range []int{1, 7, 5000} {
					for _, limit := range []int{0, bufferSize, len(publish), len(publish) - 1} {
						checkFilter(t, test.stream, sizes, readSize, limit, test.takes)
					}
				}
			}
		})
	}
}

func TestAFilterGivesTheErrorThatCameWithTheLastBytes(t *testing.T) {
	source := iotest.DataErrReader(bytes.NewReader(AppendPuback(nil, 7)))
	count := 0
	filter := NewFilter(source, 0, func([]byte) bool { count++; return true }, func() {})
	if n, err := filter.Read(make([]byte, 10)); n != 0 || err != io.EOF || count != 1 {
		t.Errorf("Read = %d, %v, and %d packets taken", n, err, count)
	}
}

func TestAReadOfNothingDoesNotWait(t *testing.T) {
	filter := NewFilter(iotest.ErrReader(errCut), 0, nil, nil)
	if n, err := filter.Read(nil); n != 0 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
}

func FuzzFilter(f *testing.F) {
	m := request()
	publish, _ := m.Append(nil)
	f.Add(slices.Concat(publish, []byte{0xc0, 0}, AppendPuback(nil, 7)), []byte{3, 200}, uint8(4), uint8(0x30))
	f.Add([]byte{0x30, 0xff, 0xff, 0xff, 0xff, 1, 0x30, 0}, []byte{1}, uint8(1), uint8(0x30))
	f.Add(slices.Concat([]byte{0x30, 0x81, 0x20}, make([]byte, 5000)), []byte{255}, uint8(9), uint8(0))
	f.Fuzz(func(t *testing.T, stream, sizes []byte, readSize, kind uint8) {
		if !slices.ContainsFunc(sizes, func(size byte) bool { return size > 0 }) {
			sizes = nil // it would never end
		}
		takes := func(packet []byte) bool { return packet[0]&0xf0 == kind&0xf0 }
		for _, limit := range []int{0, 2 + len(stream)/2} {
			checkFilter(t, stream, sizes, int(readSize)+1, limit, takes)
		}
	})
}

func TestInvariant44AFilterEndsAtTheHeaderOfAPacketThatIsTooLarge(t *testing.T) {
	m := request()
	publish, _ := m.Append(nil)
	taken := 0
	filter := NewFilter(io.MultiReader(bytes.NewReader(publish), bytes.NewReader([]byte{0x30, 0xff, 0xff, 0xff, 0x7f})), len(publish),
		func([]byte) bool { taken++; return true }, func() {})
	n, err := filter.Read(make([]byte, 10))
	const want = "a packet of 268435460 bytes, where at most"
	if n != 0 || taken != 1 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%d packets are taken and %d bytes passed on (%v); want one, none, and %q", taken, n, err, want)
	}
}

// A reader of MQTT that goes on at the fifth byte of a length allocates up to 4 GiB, and
// on 32 bits, where that is negative, panics.
func TestInvariant44AFilterWithALimitEndsAtALengthOfMoreThanFourBytes(t *testing.T) {
	overlong := []byte{0x30, 0x80, 0x80, 0x80, 0x80, 0x0f}
	none := func([]byte) bool { return false }
	if n, err := NewFilter(bytes.NewReader(overlong), 1000, none, func() {}).Read(make([]byte, 10)); n != 0 || err != ErrHeader {
		t.Errorf("with a limit: %d bytes are passed on (%v)", n, err)
	}
	if n, err := NewFilter(bytes.NewReader(overlong), 0, none, func() {}).Read(make([]byte, 10)); n != len(overlong) || err != nil {
		t.Errorf("without: %d bytes are passed on (%v)", n, err)
	}
}
