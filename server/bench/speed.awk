# Reads the output of BenchmarkSpeed, passes it on, and ends with a table and
# the targets. Fails where a benchmark did; a missed target is no
# failure.

{ print; fflush() }

/^FAIL/ { failed = 1 }

/^BenchmarkSpeed.*ns\/op/ {
	split($1, part, /[=\/]|-[0-9]+$/) # BenchmarkSpeedTLS/op=Set/inflight=64-2
	name = part[3]
	kind = part[1]
	sub(/^BenchmarkSpeed/, "", kind)
	if (kind != "") name = name " (" kind ")"
	flight = part[5]
	delete value
	for (i = 3; i < NF; i += 2) value[$(i + 1)] = $i
	if (!(name in allocations)) {
		names[++rows] = name
		allocations[name] = value["allocs/op"]
		bytes[name] = value["B/op"]
	}
	ratio[name, flight] = "x-stock" in value ? sprintf("%.2f", value["x-stock"]) : "1"
	if ("x-wanted" in value) {
		met = value["x-stock"] >= value["x-wanted"] && value["allocs/op"] <= value["allocs-wanted"]
		verdicts = verdicts sprintf("%-6s  %s, %d in flight: %.2f times as fast as stock, want %d; %d allocations, want %d\n", \
			met ? "met" : "MISSED", name, flight, value["x-stock"], value["x-wanted"], value["allocs/op"], value["allocs-wanted"])
	}
}

END {
	columns = split("1 16 64 256", in_flight, " ")
	printf "\n%-20s", "in flight"
	for (i = 1; i <= columns; i++) printf "%8s", in_flight[i]
	printf "%13s%9s\n", "allocations", "bytes"
	for (r = 1; r <= rows; r++) {
		name = names[r]
		line = sprintf("%-20s", name)
		for (i = 1; i <= columns; i++) line = line sprintf("%8s", ratio[name, in_flight[i]])
		print line sprintf("%13d%9d", allocations[name], bytes[name])
	}
	printf "\n%s", verdicts
	exit failed
}
