package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	r := newReport(out)
	// Not bufio.Scanner: a test's output has no bound on the length of its lines.
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				fmt.Fprintf(out, "%s", line)
			} else {
				r.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return r.close()
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}
