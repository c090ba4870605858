// Package bench_test measures the server and its client over MQTT. BenchmarkSpeed compares them
// with exchanges of messages by plain paho and plain mochi; speed.awk makes a table of its output.
package bench_test
