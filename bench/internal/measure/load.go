package measure

import (
	"context"
	"runtime"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
)

// Others measures the share of the processors that other programs use.
type Others struct {
	processes []int // ours
	began     time.Time
	all, own  time.Duration
}

// WatchOthers begins to measure. processes are the ids of those that are not other programs.
func WatchOthers(ctx context.Context, processes []int) (*Others, error) {
	o := &Others{processes: processes, began: time.Now()}
	var err error
	o.all, o.own, err = o.used(ctx)
	return o, err
}

// used returns the processor time that all programs and that ours have used.
func (o *Others) used(ctx context.Context) (all, own time.Duration, err error) {
	times, err := cpu.TimesWithContext(ctx, false)
	if err != nil {
		return 0, 0, err
	}
	for _, t := range times {
		busy := t.User + t.System + t.Nice + t.Irq + t.Softirq + t.Steal // seconds
		all += time.Duration(busy * float64(time.Second))
	}
	return all, processors(o.processes...), nil
}

// Add adds a process that is none of the others, and that has begun since WatchOthers.
func (o *Others) Add(process int) { o.processes = append(o.processes, process) }

// Share returns the share since WatchOthers, from 0 to 1. Processes of ours that have ended since count
// as other programs.
func (o *Others) Share(ctx context.Context) (float64, error) {
	all, own, err := o.used(ctx)
	if err != nil {
		return 0, err
	}
	available := time.Since(o.began) * time.Duration(runtime.NumCPU())
	return max(0, float64(all-o.all-(own-o.own))/float64(available)), nil
}
