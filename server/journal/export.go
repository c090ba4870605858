package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"unicode/utf8"

	"github.com/tenurelock/tenure/statestore"
)

// An exported is a line of an export. Bytes that are valid UTF-8 are text; others are in
// base64, in a field of their own.
type exported struct {
	Kind           statestore.Kind     `json:"kind"`
	Key            *string             `json:"key,omitempty"`
	KeyBase64      []byte              `json:"keyBase64,omitempty"`
	Value          *string             `json:"value,omitempty"`
	ValueBase64    []byte              `json:"valueBase64,omitempty"`
	Client         *string             `json:"client,omitempty"`
	ClientBase64   []byte              `json:"clientBase64,omitempty"`
	Sequence       uint64              `json:"sequence,omitempty"`
	Verb           *statestore.Verb    `json:"verb,omitempty"`
	Outcome        *statestore.Outcome `json:"outcome,omitempty"`
	Identity       string              `json:"identity,omitempty"`
	Version        string              `json:"version,omitempty"`
	Token          string              `json:"token,omitempty"`
	LifetimeMillis int64               `json:"lifetimeMillis,omitempty"`
	Willed         bool                `json:"willed,omitempty"`

	Change *statestore.HolderChange `json:"change,omitempty"`
}

// Export writes all records of a journal or a backup to w, as lines of JSON in UTF-8, in the order in
// which they were changed last. path is as for [Check], and so are the errors; lines may have been written
// before one.
//
//	{"kind":"key","key":"press-7/active","value":"gateway-a","version":"…","token":"…","lifetimeMillis":10000}
//	{"kind":"key","keyBase64":"/wA=","value":"","version":"…"}
//	{"kind":"fence","key":"press-8/active","token":"…"}
//	{"kind":"reply","client":"gateway-a","sequence":7,"verb":"SET","outcome":"ok","version":"…"}
//	{"kind":"change","client":"gateway-a","sequence":8,"change":{"name":"press-7/active","cause":"released",…}}
//	{"kind":"identity","identity":"…"}
//	{"kind":"bound","version":"1700000000000:9:"}
//
// A key, a value or a client id that is not valid UTF-8 is in keyBase64, valueBase64 or
// clientBase64, in standard base64. Versions and tokens have the text form of package hlc. The
// bound has no node; it is "0:0:" until the first version. A key without token is not protected; one
// without lifetimeMillis does not expire, and a willed one ends with the connection of its client; the
// client of a lease is its holder. A reply has the version that it named, if it named one. A change of a lease
// is as the status page has it.
func Export(ctx context.Context, path string, w io.Writer) (err error) {
	s, err := openSource(path)
	if err != nil {
		return err
	}
	defer func() { err = together(err, s.close()) }()
	buffered := bufio.NewWriterSize(w, 64<<10)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	if err = s.complete(ctx); err == nil {
		err = s.items(ctx, func(_ statestore.Record, item statestore.Item) error {
			return encoder.Encode(exportedOf(item))
		})
	}
	return s.about(together(err, buffered.Flush()))
}

func exportedOf(item statestore.Item) exported {
	out := exported{Kind: item.Kind, LifetimeMillis: item.Lifetime.Milliseconds(), Willed: item.Willed,
		Identity: item.Identity}
	if !item.Version.IsZero() || item.Kind == statestore.KindBound {
		out.Version = item.Version.String()
	}
	if !item.Token.IsZero() {
		out.Token = item.Token.String()
	}
	if item.Kind == statestore.KindKey || item.Kind == statestore.KindFence {
		out.Key, out.KeyBase64 = textOrBytes(item.Key)
	}
	if item.Kind == statestore.KindReply || item.Kind == statestore.KindChange || item.Since != 0 {
		out.Client, out.ClientBase64 = textOrBytes(item.Client)
	}
	switch item.Kind {
	case statestore.KindKey:
		out.Value, out.ValueBase64 = textOrBytes(item.Value)
	case statestore.KindReply:
		out.Sequence, out.Verb, out.Outcome = item.Sequence, &item.Verb, &item.Outcome
	case statestore.KindChange:
		out.Sequence, out.Change = item.Sequence, &item.Change
	}
	return out
}

func textOrBytes(s string) (*string, []byte) {
	if utf8.ValidString(s) {
		return &s, nil
	}
	return nil, []byte(s)
}
