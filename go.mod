module github.com/tenurelock/tenure

go 1.25.0

require (
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/eclipse/paho.golang v0.23.0
	golang.org/x/sync v0.20.0
)
