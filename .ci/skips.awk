# Reads what `go test -json` prints, shows what plain go test shows, and ends with the tests that were skipped, by reason.

# field returns a text of the present line, and undoes what JSON does to it.
function field(name, text) {
	if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
	text = substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 5)
	gsub(/\\\\/, "\001", text)
	gsub(/\\n/, "\n", text)
	gsub(/\\t/, "\t", text)
	gsub(/\\"/, "\"", text)
	gsub(/\\u003c/, "<", text)
	gsub(/\\u003e/, ">", text)
	gsub(/\\u0026/, "\\&", text)
	gsub("\001", "\\", text)
	return text
}

{
	action = field("Action")
	package = field("Package")
	test = field("Test")
	id = package " " test
}

action ~ /output$/ && !/"Output":"(PASS|=== |testing: warning)/ { said[id] = said[id] field("Output") }

!test && action ~ /output$/ {
	printf "%s", said[id]
	said[id] = ""
}

test && action == "fail" { printf "%s", said[id] }

test && action == "skip" {
	reason = said[id]
	sub(/ *--- SKIP.*/, "", reason)
	gsub(/\n *$/, "", reason)
	sub(/^ *[^ ]*: (SKIPPED: nothing was tested here. )?/, "", reason)
	skipped[reason]++
	total++
}

test && action ~ /^(pass|skip|fail)$/ { delete said[id] }

!test && action == "fail" { # a panic or a time limit ended the package in the middle of these tests
	for (id in said) if (index(id, package " ") == 1) printf "%s", said[id]
}

END {
	printf "\n%d tests were skipped here\n", total
	for (reason in skipped) printf "%6d  %s\n", skipped[reason], reason | "sort -rn"
}
