package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/agentsafe/agentsafe/integration/harness"
)

type options struct {
	runtime      string
	runs, rounds int
	json, target bool
}

func main() {
	var o options
	flag.StringVar(&o.runtime, "runtime", "", "the program to compare with runc and crun")
	flag.IntVar(&o.runs, "runs", 60, "how often each is run")
	flag.IntVar(&o.rounds, "rounds", 200, "how often each hardening is measured by itself; 0 leaves them out")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.BoolVar(&o.target, "target", false, "exit 1 if a target is missed")
	flag.Parse()
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

func run(o options) (int, error) {
	b, code, err := harness.EnterBox(os.Args[1:], func(context.Context) error {
		_, err := harness.Busybox()
		if err == nil && o.rounds > 0 {
			err = buildWithout(o.runtime)
		}
		return err
	})
	if b == nil || err != nil { // outside: the box has done the work
		return code, err
	}
	if _, err := os.Stat(o.runtime); err != nil {
		return 1, fmt.Errorf("runtime under test: %w", err)
	}
	report, err := measureAll(b, o)
	if err != nil {
		return 1, err
	}
	if o.json {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		report.print(os.Stdout)
	}
	if missed := report.missed(); o.target && len(missed) > 0 {
		return 1, fmt.Errorf("targets missed: %v", missed)
	}
	return 0, err
}

// compile builds a C program of this directory into dir.
func compile(dir, name string) (string, error) {
	root, err := harness.RepoRoot()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	cmd := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-o", out, filepath.Join(root, "integration", "bench", "c", name+".c"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s.c: %w: %s", name, err, text)
	}
	return out, nil
}
