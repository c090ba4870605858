# Reads the output of BenchmarkDurability, passes it on, and ends with a table in
# Markdown. Fails where a benchmark did.

{ print; fflush() }

/^(--- )?FAIL/ { failed = 1 }

/^BenchmarkDurability.*ns\/op/ {
	name = $1
	sub(/-[0-9]+$/, "", name) # the number of processors
	split("", part)
	count = split(name, field, "/")
	for (i = 2; i <= count; i++) { split(field[i], pair, "="); part[pair[1]] = pair[2] }
	for (i = 3; i < NF; i += 2) value[name, $(i + 1)] = $i
	mode = part["mode"]
	if (mode != "" && !(mode in seen)) { seen[mode] = 1; modes[++columns] = mode }
	if (part["op"] == "Fsync") fsync = $3 / 1e6
	if (part["op"] == "Set") {
		flight = part["inflight"]
		if (!(flight in flights)) { flights[flight] = 1; in_flight[++rows] = flight }
		sets[flight, mode] = sprintf("%.0f/s, %.2f ms, %.2f ms", value[name, "ops/s"], value[name, "ms-p50"], value[name, "ms-p99"])
		rate[flight, mode] = value[name, "ops/s"]
	}
	if (part["op"] == "Renewals") {
		leases = part["leases"]
		renewals[mode] = sprintf("%.0f%% of a processor, %.1f commits a minute", value[name, "%CPU"], value[name, "commits/min"])
		if (value[name, "lost"] > 0) renewals[mode] = renewals[mode] sprintf(" (%d leases were lost: the machine was busy)", value[name, "lost"])
	}
	if (part["op"] == "Restart") {
		keys = part["keys"]
		if (!(keys in sizes)) { sizes[keys] = 1; size[++restarts] = keys }
		restart[keys, mode] = sprintf("%.2f s", value[name, "s-to-answer"])
	}
}

END {
	printf "\nA write of 4 KiB and its fsync took %.2f ms.\n\n|", fsync
	line = "|---|"
	for (c = 1; c <= columns; c++) { printf " | %s", modes[c]; line = line "---|" }
	printf " |\n%s\n", line
	for (r = 1; r <= rows; r++) {
		printf "| SETs, %s in flight: rate, median, 99th percentile", in_flight[r]
		for (c = 1; c <= columns; c++) printf " | %s", sets[in_flight[r], modes[c]]
		print " |"
	}
	if (("1", modes[1]) in rate && ("64", modes[1]) in rate) {
		printf "| 64 in flight, compared with one after the other"
		for (c = 1; c <= columns; c++) printf " | %.1f times as many", rate["64", modes[c]] / rate["1", modes[c]]
		print " |"
	}
	if (leases != "") {
		printf "| renewals of %s leases", leases
		for (c = 1; c <= columns; c++) printf " | %s", renewals[modes[c]]
		print " |"
	}
	for (r = 1; r <= restarts; r++) {
		printf "| restart with %s keys, until the first answer", size[r]
		for (c = 1; c <= columns; c++) printf " | %s", ((size[r], modes[c]) in restart) ? restart[size[r], modes[c]] : "–"
		print " |"
	}
	exit failed
}
