module github.com/tenurelock/tenure/release

go 1.25.0
