package member

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// bootstrapFree is how much must be free in the file for a member to write it anew before it
	// begins, and minFree while it runs. While it runs at least half of the file must be free too.
	bootstrapFree, minFree = 256 << 20, 32 << 20
	// unusedAfter is how long no store may have been active through a member that writes its file
	// anew.
	unusedAfter  = time.Minute
	alarmTimeout = 10 * time.Second
)

// maintainEvery is the pause between two looks of maintain. Tests change it.
var maintainEvery = time.Minute

// maintain writes the file of the database anew when much of it is free, and ends an alarm that is over,
// until ctx ends.
func (m *Member) maintain(ctx context.Context) {
	for {
		m.disarm(ctx)
		m.defragment()
		if !sleep.For(ctx, maintainEvery) {
			return
		}
	}
}

// disarm ends the alarm with which etcd refuses the writes of all members, if it was about this member
// and its file is smaller than the quota: the quota was raised, or the file was written anew. etcd
// waits for an operator to do that, and meanwhile no store could become the active one.
func (m *Member) disarm(ctx context.Context) {
	server := m.etcd.Server
	for _, alarm := range server.Alarms() {
		if alarm.Alarm != etcdserverpb.AlarmType_NOSPACE || alarm.MemberID != uint64(server.MemberID()) ||
			server.Backend().Size() >= m.config.QuotaBackendBytes/10*9 {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, alarmTimeout)
		_, err := server.Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_DEACTIVATE, MemberID: alarm.MemberID, Alarm: alarm.Alarm})
		cancel()
		m.report("end the alarm that etcd's database is full", err, slog.LevelWarn, "etcd's database was full, and has room again")
	}
}

// defragment writes the file anew if much of it is free. Meanwhile the member applies and answers
// nothing, so one that leads, or through which a store is active, does not. Their files grow no more
// either: what is free is used again.
func (m *Member) defragment() {
	backend := m.etcd.Server.Backend()
	size, used := backend.Size(), backend.SizeInUse()
	if free := size - used; free < minFree || free < size/2 || m.etcd.Server.Leader() == m.etcd.Server.MemberID() || m.used.within(unusedAfter) {
		return
	}
	began := time.Now()
	err := backend.Defrag()
	m.report("write the file of etcd's database anew", err, slog.LevelInfo, "wrote the file of etcd's database anew",
		slog.Int64("before", size), slog.Int64("after", backend.Size()), slog.Duration("took", time.Since(began)))
}

// report logs what maintain has done, or that it could not.
func (m *Member) report(task string, err error, level slog.Level, done string, attributes ...any) {
	switch {
	case m.logger == nil:
	case err != nil:
		m.logger.Warn(task+": tried again in a minute", "error", err)
	default:
		m.logger.Log(context.Background(), level, done, attributes...)
	}
}

// usage notes when a store was active through a member: such a one writes, and one of another process
// (Options.ClientURL) renews a lease of etcd.
type usage struct{ latest atomic.Int64 } // Unix time in nanoseconds; 0: never

func (u *usage) within(duration time.Duration) bool {
	return time.Since(time.Unix(0, u.latest.Load())) < duration
}

func (u *usage) note(method string) {
	switch method {
	case "/etcdserverpb.Lease/LeaseKeepAlive", "/etcdserverpb.KV/Txn":
		u.latest.Store(time.Now().UnixNano())
	}
}

// interceptors return what etcd's servers for clients need to note usage.
func (u *usage) interceptors() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			u.note(info.FullMethod)
			return handler(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			u.note(info.FullMethod)
			return handler(server, stream)
		}),
	}
}
