module github.com/tenurelock/tenure/internal/mutants

go 1.25.0
