package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/tenurelock/tenure/internal/sleep"
)

// ErrLostData ends a member that has no data, though its cluster knows that it had some.
var ErrLostData = errors.New("member: the directory is empty, but the cluster has had this member before: its disk was lost, or this is another directory; " +
	"replace the member (tenure-cluster replace), because without what it has confirmed it could make the cluster forget that")

const (
	membersPath = "/members" // where etcd lists its members for other members
	// waitingHeader is in the answers of a member that waits for another one.
	waitingHeader = "Tenure-Member-Waits"
	askTimeout    = 2 * time.Second
	askPause      = 250 * time.Millisecond
	// silentAfter is how long a newcomer waits before it logs why.
	silentAfter = 5 * time.Second
)

// checkName refuses data of a member with another name, and notes the name of one that begins. etcd would take the
// new name, and listen at its URL, where no other member looks for the data.
func checkName(dir, name string) error {
	path := filepath.Join(dir, "name")
	known, err := os.ReadFile(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case len(known) == 0:
		return os.WriteFile(path, []byte(name), 0o600)
	case string(known) != name:
		return fmt.Errorf("%s has the data of member %q, and this is member %q; give that name, or the directory of this member. "+
			"To give a member another name, replace it (tenure-cluster replace)", dir, known, name)
	}
	return nil
}

// isNew reports whether a member has no data, and others to ask.
func isNew(config *embed.Config, others []string) bool {
	return len(others) > 0 && !wal.Exist(filepath.Join(config.Dir, "member", "wal"))
}

// others returns the URLs of the other members.
func (o *Options) others() (urls []string) {
	peers, _ := o.peers() // config has checked them
	for name, u := range peers {
		if name != o.Name {
			urls = append(urls, u.String())
		}
	}
	return urls
}

// newcomer is a member without data that does not run yet. etcd counts a member without data like
// any other. If its disk was lost, it makes a majority with a member that has missed the latest
// changes, and these are forgotten. So a newcomer first asks another member. One that is no
// newcomer itself knows whether this one has run before; and without such a member there is no
// majority anyway. etcd asks the others too, but goes on if they do not answer.
type newcomer struct {
	config *embed.Config
	others []string
	logger *slog.Logger // may be nil
	client *http.Client
}

// startNewcomer also answers other newcomers, until etcd answers in its place.
func startNewcomer(config *embed.Config, others []string, peers *peers, logger *slog.Logger) (*newcomer, error) {
	carrier, err := transport.NewTransport(config.PeerTLSInfo, askTimeout)
	if err != nil {
		return nil, err
	}
	peers.answer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(waitingHeader, "1")
		http.Error(w, "this member waits for another one", http.StatusServiceUnavailable)
	}))
	return &newcomer{config: config, others: others, logger: logger, client: &http.Client{Transport: carrier, Timeout: askTimeout}}, nil
}

// mayBegin waits until another member has answered. It returns ErrLostData if one says that this
// member has run before, and the cause of ctx if that ends.
func (n *newcomer) mayBegin(ctx context.Context) error {
	defer n.client.CloseIdleConnections()
	patience := time.After(silentAfter)
	for {
		answered := 0
		var failure error
		for _, other := range n.others {
			known, err := n.ask(ctx, other)
			switch {
			case known:
				return ErrLostData
			case err == nil:
				answered++
			default:
				failure = err
			}
		}
		if answered > 0 {
			return nil
		}
		select {
		case <-patience:
			if n.logger != nil {
				n.logger.Warn("this member has no data yet, and begins when another member answers", "error", failure)
			}
		default:
		}
		if !sleep.For(ctx, askPause) {
			return context.Cause(ctx)
		}
	}
}

// ask asks another member whether this one has run before.
func (n *newcomer) ask(ctx context.Context, other string) (known bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, other+membersPath, nil)
	if err != nil {
		return false, err
	}
	response, err := n.client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.Header.Get(waitingHeader) != "" && n.config.ClusterState != embed.ClusterStateFlagExisting {
		return false, nil
	}
	var members []struct{ PeerURLs, ClientURLs []string }
	if response.StatusCode != http.StatusOK {
		return false, errors.New(response.Status)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 1<<20)).Decode(&members); err != nil {
		return false, fmt.Errorf("decode the members: %w", err)
	}
	own := n.config.AdvertisePeerUrls[0].String()
	for _, m := range members {
		// A member publishes the URL for clients once it runs.
		if slices.Contains(m.PeerURLs, own) && len(m.ClientURLs) > 0 {
			return true, nil
		}
	}
	return false, nil
}
