module github.com/tenurelock/tenure/server

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/eclipse/paho.golang v0.23.0
	github.com/gofrs/flock v0.13.1
	github.com/mochi-mqtt/server/v2 v2.7.9
	github.com/tenurelock/tenure v0.0.0
	github.com/tenurelock/tenure/contrib/tenurews v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/crypto v0.54.0
	golang.org/x/sync v0.20.0
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/gorilla/websocket v1.5.3 // indirect
	github.com/rs/xid v1.4.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/tenurelock/tenure => ../

replace github.com/tenurelock/tenure/contrib/tenurews => ../contrib/tenurews
