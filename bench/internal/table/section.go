package table

import (
	"errors"
	"fmt"
	"strings"
)

// Section is a part of a document that a program writes. Its value is the target of make that does.
type Section string

// The sections.
const (
	Peers  Section = "peers"
	Growth Section = "growth"
)

// Begin is the line before the section.
func (s Section) Begin() string {
	return fmt.Sprintf("<!-- %s: begin. make %s writes what is between these lines. -->", s, s)
}

// End is the line after the section.
func (s Section) End() string { return fmt.Sprintf("<!-- %s: end -->", s) }

// Replace returns the document with text between the lines Begin and End of the section, in place of
// what is there. It is an error if the document does not have both lines once, in this order.
func (s Section) Replace(document, text string) (string, error) {
	begin, end := s.Begin(), s.End()
	before, rest, ok := strings.Cut(document, begin+"\n")
	if !ok {
		return "", fmt.Errorf("the document has no line %q", begin)
	}
	_, after, ok := strings.Cut(rest, end+"\n")
	if !ok {
		return "", fmt.Errorf("the document has no line %q after the line %q", end, begin)
	}
	if strings.Contains(before, end) || strings.Contains(after, begin) || strings.Contains(after, end) {
		return "", errors.New("the document has the lines around the report more than once, or in the wrong order")
	}
	return before + begin + "\n\n" + strings.TrimSpace(text) + "\n\n" + end + "\n" + after, nil
}
