package vm

import (
	"fmt"
	"strings"
)

// outcome is one test that ran in the machine.
type outcome struct {
	name    string
	verdict string // PASS, FAIL or SKIP
	output  string
}

// section is what one suite wrote.
type section struct {
	name  string
	exit  string
	tests []outcome
	// rest is the output that belongs to no test.
	rest string
}

// parse reads the output of go test -v of several suites. Only top-level tests are told apart: the output of subtests
// belongs to theirs.
func parse(results string) (sections []section) {
	for line := range strings.Lines(results) {
		if mark, ok := strings.CutPrefix(line, sectionMark); ok {
			_, name, _ := strings.Cut(strings.TrimSpace(mark), " ")
			if name == "" {
				return sections
			}
			sections = append(sections, section{name: name})
			continue
		}
		if len(sections) > 0 {
			sections[len(sections)-1].add(line)
		}
	}
	return sections
}

func (s *section) add(line string) {
	if code, ok := strings.CutPrefix(line, "=== EXIT "); ok {
		s.exit = strings.TrimSpace(code)
		return
	}
	if name, ok := strings.CutPrefix(line, "=== RUN "); ok {
		if name = strings.TrimSpace(name); !strings.Contains(name, "/") {
			s.tests = append(s.tests, outcome{name: name, verdict: "FAIL", output: "no verdict\n"})
		}
		return
	}
	if len(s.tests) == 0 {
		s.rest += line
		return
	}
	last := &s.tests[len(s.tests)-1]
	var verdict, name string
	if n, _ := fmt.Sscanf(line, "--- %s %s", &verdict, &name); n == 2 && strings.HasPrefix(line, "--- ") {
		if t := s.find(name); t != nil {
			t.verdict = strings.TrimSuffix(verdict, ":")
			t.output = strings.TrimPrefix(t.output, "no verdict\n")
			return
		}
	}
	last.output += line
}

func (s *section) find(name string) *outcome {
	for i := range s.tests {
		if s.tests[i].name == name {
			return &s.tests[i]
		}
	}
	return nil
}
