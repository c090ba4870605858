package growth

// The keys of the values of a point.
const (
	serverMemory     = "server memory"
	clientMemory     = "client memory"
	serverIdleMemory = "server idle memory"
	clientIdleMemory = "client idle memory"
	serverTime       = "server time"
	clientTime       = "client time"
	serverIdleTime   = "server idle time"
	clientIdleTime   = "client idle time"
	latency50        = "p50"
	latency99        = "p99"
)

const (
	megabyte = 1 << 20
	// memoryNoise is a difference of resident memory that means nothing.
	memoryNoise = 4 * megabyte
	// latencyNoise is a difference of latencies that means nothing, in seconds.
	latencyNoise = 50e-6
)

// All returns the subjects, in the order of the document.
func All() []*Subject {
	return []*Subject{leases(), connections(), keys(), candidates(), watchers()}
}

// memoryOf returns the metrics of the memory of an item.
func memoryOf(item, server, clients, state string) []Metric {
	panel := "Memory of one " + item
	return []Metric{
		{Panel: panel, Name: "server" + state, Unit: Bytes, Kind: Total, Noise: memoryNoise, key: server},
		{Panel: panel, Name: "clients" + state, Unit: Bytes, Kind: Total, Noise: memoryNoise, key: clients},
	}
}

// timeOf returns the metrics of processor time.
func timeOf(panel, server, clients string, kind Kind, noise float64) []Metric {
	return []Metric{
		{Panel: panel, Name: "server", Unit: Seconds, Kind: kind, Noise: noise, key: server},
		{Panel: panel, Name: "clients", Unit: Seconds, Kind: kind, Noise: noise, key: clients},
	}
}

// latencyOf returns the metrics of latency: the median, and what is shown of the tail.
func latencyOf(panel, tail string) []Metric {
	return []Metric{
		{Panel: panel, Name: "p50", Unit: Seconds, Kind: Each, Noise: latencyNoise, key: latency50},
		{Panel: panel, Name: tail, Unit: Seconds, Kind: Each, Noise: latencyNoise, key: latency99},
	}
}

func join(metrics ...[]Metric) (all []Metric) {
	for _, m := range metrics {
		all = append(all, m...)
	}
	return all
}

const aRequest = "A request of another client"

// crowd are the sizes of what is around one key.
var crowd = []int{2, 10, 30, 100, 300, 1_000}
