module github.com/tenurelock/tenure/examples

go 1.25.0

require (
	github.com/tenurelock/tenure v0.0.0
	github.com/tenurelock/tenure/server v0.0.0
)

require (
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	github.com/eclipse/paho.golang v0.23.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
)

replace github.com/tenurelock/tenure => ../

replace github.com/tenurelock/tenure/server => ../server

replace github.com/tenurelock/tenure/contrib/tenurews => ../contrib/tenurews
