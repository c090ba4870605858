package journal_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

var (
	version = hlc.Timestamp{Wall: 1_700_000_000_000, Counter: 7, Node: "StateStore"}
	token   = hlc.Token{Wall: 1_700_000_000_001, Counter: 0, Node: "node-2"}
)

func key(name, value string) statestore.Record {
	return statestore.Item{Kind: statestore.KindKey, Key: name, Value: value, Version: version, Token: token, Lifetime: 10 * time.Second}.Record()
}

func keyGone(name string) statestore.Record {
	return statestore.Record{ID: key(name, "").ID}
}

func fence(name string) statestore.Record {
	return statestore.Item{Kind: statestore.KindFence, Key: name, Token: token}.Record()
}

// reply returns the record of a reply to client, as a store makes it.
func reply(client string) statestore.Record {
	store, timestamp := must(statestore.New(statestore.Options{Journaled: true})), version.String()
	now := statestore.Instant{WallMillis: version.Wall}
	store.Restored(now, statestore.Former{})
	_, effects := store.Apply(now, statestore.Parse(statestore.Request{
		Client: client, Correlation: []byte("request 1"), Timestamp: &timestamp,
		Payload: resp3.AppendCommand(nil, "SET", "key", "value"),
	}))
	all := slices.Concat(effects.Groups...)
	return all[slices.IndexFunc(all, func(r statestore.Record) bool { return r.ID[0] == 'r' })]
}

func identity(name string) statestore.Record {
	return statestore.Item{Kind: statestore.KindIdentity, Identity: name}.Record()
}

func bound(version hlc.Timestamp) statestore.Record {
	return statestore.Item{Kind: statestore.KindBound, Version: version}.Record()
}

// keys returns the values of the keys among records.
func keys(t testing.TB, records map[string]string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for id, value := range records {
		item, err := statestore.Record{ID: []byte(id), Value: []byte(value)}.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == statestore.KindKey {
			found[item.Key] = item.Value
		}
	}
	return found
}

func wantKeys(t testing.TB, records, want map[string]string) {
	t.Helper()
	if got := keys(t, records); !maps.Equal(got, want) {
		t.Fatalf("the journal has the keys %.300q, want %.300q", got, want)
	}
}
