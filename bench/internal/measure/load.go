package measure

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/load"
)

// MaxBusy is how much of its processors a machine may use for other programs while peers are
// measured, from 0 to 1.
const MaxBusy = 0.1

// Load is what other programs do on this machine.
type Load struct {
	// Average is the load average of the last minute.
	Average float64
	// Busy is the share of all processors that was in use in the last moments, from 0 to 1.
	Busy float64
}

// sample is how long LoadNow looks.
const sample = 2 * time.Second

// LoadNow looks for two seconds what the machine does.
func LoadNow(ctx context.Context) (Load, error) {
	average, err := load.AvgWithContext(ctx)
	if err != nil {
		return Load{}, err
	}
	percent, err := cpu.PercentWithContext(ctx, sample, false)
	if err != nil {
		return Load{}, err
	}
	if len(percent) != 1 {
		return Load{}, fmt.Errorf("the system reports %d processor totals", len(percent))
	}
	return Load{Average: average.Load1, Busy: percent[0] / 100}, nil
}

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
	for _, process := range o.processes {
		used, _ := ProcessorTime(process)
		own += used
	}
	return all, own, nil
}

// Elapsed returns the time since WatchOthers.
func (o *Others) Elapsed() time.Duration { return time.Since(o.began) }

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
