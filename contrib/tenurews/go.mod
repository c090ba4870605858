module github.com/tenurelock/tenure/contrib/tenurews

go 1.25.0

require (
	github.com/coder/websocket v1.8.15
	github.com/tenurelock/tenure v0.0.0
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/eclipse/paho.golang v0.23.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
)

replace github.com/tenurelock/tenure => ../..
