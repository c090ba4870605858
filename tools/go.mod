module github.com/tenurelock/tenure/tools

go 1.25.0

require (
	github.com/tenurelock/tenure v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
)

replace github.com/tenurelock/tenure => ../
