package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrDeposed ends a Journal: etcd says that its process is no longer the active one.
	ErrDeposed = errors.New("this process is no longer the active store; another may be")
	// ErrDeadlinePassed ends a Journal: its process could not prove in time that it is the
	// active one.
	ErrDeadlinePassed = errors.New("this process could not prove in time that it is the active store")
	// ErrUnconfirmed ends a Journal: etcd answered reads, but did not confirm a change in time.
	ErrUnconfirmed = errors.New("etcd did not confirm a change in time, though it answers reads: the disk of a member " +
		"may be stuck, or large packets between the members may be lost (check the MTU)")
	// ErrClosed ends a Journal after its Close, and a Campaign after Candidate.Close.
	ErrClosed = errors.New("closed")
	// ErrForeignData is the error of Open when the prefix holds keys that are not of a store,
	// or are of a newer one.
	ErrForeignData = errors.New("the prefix holds other data")
)

// refusal returns the cure if err is an answer of etcd that no repetition changes: the request
// had no effect. It returns "" if err can pass or leaves the outcome unknown.
func refusal(err error) (cure string) {
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return "raise --max-txn-ops of etcd"
	case errors.Is(err, rpctypes.ErrRequestTooLarge), tooLarge(err):
		return "raise --max-request-bytes of etcd"
	case errors.Is(err, rpctypes.ErrNoSpace):
		return "etcd's database is full: compact and defragment it, or raise --quota-backend-bytes; then disarm the alarm " +
			"with etcdctl alarm disarm"
	case errors.Is(err, rpctypes.ErrCorrupt):
		return "etcd found that its members differ: replace the corrupt member"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return "grant the user of etcd readwrite permission for the prefix"
	case errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrInvalidAuthToken),
		errors.Is(err, rpctypes.ErrAuthFailed):
		return "etcd requires a user: give a client certificate whose common name is that user"
	case errors.Is(err, rpctypes.ErrDuplicateKey), errors.Is(err, rpctypes.ErrEmptyKey),
		status.Code(err) == codes.Unimplemented:
		return "this is not a compatible etcd"
	}
	return ""
}

// tooLarge reports whether gRPC refused a message for its size, on either side.
func tooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max")
}

// isFinal reports whether no repetition of a request would change err.
func isFinal(err error) bool {
	return errors.As(err, &final{}) || errors.Is(err, rpctypes.ErrLeaseNotFound) || refusal(err) != ""
}

// explained adds the cure to a refusal.
func explained(err error) error {
	if cure := refusal(err); cure != "" {
		return fmt.Errorf("%w; %s", err, cure)
	}
	return err
}

// gaveUp is the error of a request that was repeated until ctx ended; last is why the latest
// attempt failed, or nil.
func gaveUp(ctx context.Context, last error) error {
	if last == nil || errors.Is(last, context.Canceled) {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w; the latest attempt: %v", context.Cause(ctx), last)
}
