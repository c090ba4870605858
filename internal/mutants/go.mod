module github.com/tenurelock/tenure/internal/mutants

go 1.25.0

require github.com/tenurelock/tenure v0.0.0

replace github.com/tenurelock/tenure => ../../
