package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/agentsafe/agentsafe/profiles"
)

// maxInputBytes bounds the description; Docker's profile has 12 KB.
const maxInputBytes = 4 << 20

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafe-seccomp:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(io.LimitReader(in, maxInputBytes))
	dec.DisallowUnknownFields()
	var f profiles.SeccompFilter
	if err := dec.Decode(&f); err != nil {
		return fmt.Errorf("read filter: %w", err)
	}
	program, err := compile(&f)
	if err != nil {
		return fmt.Errorf("compile filter %q: %w", f.Name, err)
	}
	if _, err := out.Write(encode(program)); err != nil {
		return fmt.Errorf("write program: %w", err)
	}
	return nil
}
