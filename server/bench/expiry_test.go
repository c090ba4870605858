package bench_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// BenchmarkExpiryNotification measures how long after the expiry of a key a watcher is notified, over
// MQTT: in milliseconds, on average and at worst.
func BenchmarkExpiryNotification(b *testing.B) {
	address := testsupport.Start(b, server.Options{})
	p := testsupport.Connect(b, address, "p", nil)
	const px = 20 * time.Millisecond
	var sum, worst time.Duration
	n := 0
	for ; b.Loop(); n++ {
		key := fmt.Sprint("k", n)
		p.Do("KEYNOTIFY", key)
		sent := time.Now()
		p.Do("SET", key, "v", "PX", strconv.FormatInt(px.Milliseconds(), 10))
		p.NextNotification() // of the SET
		p.NextNotification() // of its end
		// The store applied the SET after it was sent, so this is an upper bound.
		late := time.Since(sent) - px
		sum += late
		worst = max(worst, late)
		p.Do("KEYNOTIFY", key, "STOP")
	}
	b.ReportMetric(float64((sum/time.Duration(n)).Microseconds())/1000, "ms-late")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-late-at-worst")
}
