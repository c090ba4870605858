package mqtt

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
)

// Versions of MQTT, as CONNECT names them [MQTT-3.1.2-2].
const (
	Version31  = 3 // its protocol name is MQIsdp
	Version311 = 4
	Version5   = 5
)

// MaxHeader is the length of the longest fixed header.
const MaxHeader = 5

// Size returns the length of the packet at the beginning of b, and the length of its fixed
// header. It reports false while b is too short to tell, and always if b cannot be the
// beginning of a packet (see [Broken]).
func Size(b []byte) (size, header int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	rest := Reader(b[1:])
	remaining, ok := rest.Variable()
	if !ok {
		return 0, 0, false
	}
	header = len(b) - len(rest)
	return header + remaining, header, true
}

// Broken reports whether b cannot be the beginning of a packet, because its length has more
// than four bytes or more than it needs [MQTT-1.5.5-1].
func Broken(b []byte) bool {
	_, _, ok := Size(b)
	isLast := func(digit byte) bool { return digit < 0x80 } // the length is complete, and invalid
	return !ok && len(b) > 0 && (len(b) >= MaxHeader || slices.ContainsFunc(b[1:], isLast))
}

// Reader is the unread part of a buffer. The slices that its methods return are parts of the
// buffer. A method that reports false found too little or an invalid value, and has read
// nothing of it.
type Reader []byte

// Byte reads a byte.
func (r *Reader) Byte() (byte, bool) {
	if len(*r) < 1 {
		return 0, false
	}
	value := (*r)[0]
	*r = (*r)[1:]
	return value, true
}

// Uint16 reads a two byte integer [MQTT-1.5.2].
func (r *Reader) Uint16() (uint16, bool) {
	if len(*r) < 2 {
		return 0, false
	}
	value := binary.BigEndian.Uint16(*r)
	*r = (*r)[2:]
	return value, true
}

// Uint32 reads a four byte integer [MQTT-1.5.3].
func (r *Reader) Uint32() (uint32, bool) {
	if len(*r) < 4 {
		return 0, false
	}
	value := binary.BigEndian.Uint32(*r)
	*r = (*r)[4:]
	return value, true
}

// Variable reads a variable byte integer: at most four bytes, and no more than its value
// needs [MQTT-1.5.5-1].
func (r *Reader) Variable() (int, bool) {
	value := 0
	for i := range min(len(*r), 4) {
		digit := (*r)[i]
		value |= int(digit&0x7f) << (7 * i)
		if digit < 0x80 {
			if digit == 0 && i > 0 {
				return 0, false
			}
			*r = (*r)[i+1:]
			return value, true
		}
	}
	return 0, false
}

// Binary reads binary data [MQTT-1.5.6].
func (r *Reader) Binary() ([]byte, bool) {
	length, ok := r.Uint16()
	if !ok || int(length) > len(*r) {
		return nil, false
	}
	value := (*r)[:length:length]
	*r = (*r)[length:]
	return value, true
}

// Text reads a string, which must be UTF-8 without surrogates and without U+0000
// [MQTT-1.5.4-1, MQTT-1.5.4-2].
func (r *Reader) Text() ([]byte, bool) {
	value, ok := r.Binary()
	return value, ok && isText(value)
}

func isText(value []byte) bool { return bytes.IndexByte(value, 0) < 0 && utf8.Valid(value) }

// PacketID reads a packet identifier, which cannot be 0 [MQTT-2.2.1-3].
func PacketID(in *Reader) (uint16, *Refusal) {
	id, ok := in.Uint16()
	switch {
	case !ok:
		return 0, Refuse(Malformed, "it ends before its packet identifier")
	case id == 0:
		return 0, Refuse(ProtocolError, "its packet identifier is 0")
	}
	return id, nil
}

// CheckHeader returns what is wrong with the fixed header of a complete packet, or nil [MQTT-2.1.3-1].
func CheckHeader(packet []byte) *Refusal {
	size, _, ok := Size(packet)
	if !ok || size != len(packet) {
		return Refuse(Malformed, "it is not as long as its header says")
	}
	flags := byte(0)
	switch Type(packet) {
	case packets.PUBLISH:
		return nil
	case packets.PUBREL, packets.SUBSCRIBE, packets.UNSUBSCRIBE:
		flags = 2
	}
	if packet[0]&0x0f != flags {
		return Refuse(Malformed, "its flags are reserved")
	}
	return nil
}

// bodyOf returns what follows the fixed header of a complete packet of one of these types.
func bodyOf(packet []byte, first, last byte) (Reader, *Refusal) {
	if refusal := CheckHeader(packet); refusal != nil {
		return nil, refusal
	}
	if kind := Type(packet); kind < first || kind > last {
		return nil, Refuse(ProtocolError, "it has the type %d", kind)
	}
	_, header, _ := Size(packet)
	return packet[header:], nil
}

// VariableLength returns how many bytes AppendVariable adds.
func VariableLength(value int) int {
	length := 1
	for ; value > 0x7f; value >>= 7 {
		length++
	}
	return length
}

// AppendVariable appends a variable byte integer. It must not be above 268,435,455.
func AppendVariable(dst []byte, value int) []byte {
	for ; value > 0x7f; value >>= 7 {
		dst = append(dst, byte(value)|0x80)
	}
	return append(dst, byte(value))
}

// AppendString appends a string or binary data of at most [MaxString] bytes.
func AppendString[T string | []byte](dst []byte, text T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}
