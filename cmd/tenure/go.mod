module github.com/tenurelock/tenure/cmd/tenure

go 1.25.0

require (
	github.com/creack/pty v1.1.24
	github.com/eclipse/paho.golang v0.23.0
	github.com/prometheus/client_golang v1.23.2
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/tenurelock/tenure v0.0.0
	github.com/tenurelock/tenure/contrib/tenurews v0.0.0
	github.com/tenurelock/tenure/server v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	golang.org/x/crypto v0.54.0
	golang.org/x/sync v0.20.0
	golang.org/x/sys v0.47.0
	golang.org/x/term v0.45.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coder/websocket v1.8.15 // indirect
	github.com/gofrs/flock v0.13.1 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.66.1 // indirect
	github.com/prometheus/procfs v0.16.1 // indirect
	github.com/rogpeppe/go-internal v1.14.1 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	google.golang.org/protobuf v1.36.8 // indirect
)

// "go install …/cmd/tenure@version" refuses a go.mod with replace directives: the commit of a
// release requires the released versions of these modules and has none.
replace (
	github.com/tenurelock/tenure => ../../
	github.com/tenurelock/tenure/contrib/tenurews => ../../contrib/tenurews
	github.com/tenurelock/tenure/server => ../../server
)
