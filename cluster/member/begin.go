package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/sleep"
)

// ErrLostData ends a member that has no data, though its cluster knows that it had some.
var ErrLostData = errors.New("member: the directory is empty, but the cluster has had this member before: its disk " +
	"was lost, or this is another directory; replace the member (tenure-cluster replace), because without what it has " +
	"confirmed it could make the cluster forget that")

const (
	membersPath = "/members" // where etcd lists its members for other members
	// waitingHeader is in the answers of a member that waits for another one.
	waitingHeader = "Tenure-Member-Waits"
	askTimeout    = 2 * time.Second
	askPause      = 250 * time.Millisecond
	// silentAfter is how long a newcomer waits before it logs why.
	silentAfter = 5 * time.Second
)

// isNew reports whether a member has no data, and others to ask.
func (m *Member) isNew() bool {
	return len(m.others) > 0 && !wal.Exist(filepath.Join(m.config.Dir, "member", "wal"))
}

// awaitOthers waits, with a member without data that answers others of its kind, until another one has answered.
// etcd counts a member without data like any other. If its disk was lost, it makes a majority with a member that
// has missed the latest changes, and these are forgotten. So this one first asks another member. One that has data
// knows whether this one has run before; and without such a member there is no
// majority anyway. etcd asks the others too, but goes on if they do not answer.
//
// It returns ErrLostData if a member says that this one has run before, and the cause of ctx if that ends.
func (m *Member) awaitOthers(ctx context.Context) error {
	carrier, err := transport.NewTransport(m.config.PeerTLSInfo, askTimeout)
	if err != nil {
		return fmt.Errorf("member: %w", err)
	}
	defer carrier.CloseIdleConnections()
	client := &http.Client{Transport: carrier, Timeout: askTimeout}
	m.peers.answer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(waitingHeader, "1")
		http.Error(w, "this member waits for another one", http.StatusServiceUnavailable)
	}))
	var reasons loglimit.Limiter
	for began := time.Now(); ; {
		var failure error
		answered := false
		for _, other := range m.others {
			known, err := m.ask(ctx, client, other)
			switch {
			case known:
				return ErrLostData
			case err == nil:
				answered = true
			default:
				failure = err
			}
		}
		if answered {
			return nil
		}
		if time.Since(began) > silentAfter && reasons.Due("", time.Now()) {
			m.logger.Warn("this member has no data yet, and begins when another member answers", "error", failure)
		}
		if !sleep.For(ctx, askPause) {
			return context.Cause(ctx)
		}
	}
}

// ask asks another member whether this one has run before.
func (m *Member) ask(ctx context.Context, client *http.Client, other string) (known bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, other+membersPath, nil)
	if err != nil {
		return false, err
	}
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.Header.Get(waitingHeader) != "" && m.config.ClusterState != embed.ClusterStateFlagExisting {
		return false, nil
	}
	var members []struct{ PeerURLs, ClientURLs []string }
	if response.StatusCode != http.StatusOK {
		return false, errors.New(response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&members); err != nil {
		return false, fmt.Errorf("decode the members: %w", err)
	}
	own := m.config.AdvertisePeerUrls[0].String()
	for _, listed := range members {
		// A member publishes the URL for clients once it runs.
		known = known || slices.Contains(listed.PeerURLs, own) && len(listed.ClientURLs) > 0
	}
	return known, nil
}
