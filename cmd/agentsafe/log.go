package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// logger writes lines as runc's: containerd's shim takes the last one of level error from the file it named.
type logger struct {
	file  *os.File
	json  bool
	debug bool
}

func (l *logger) open(path, format string, debug bool) error {
	switch format {
	case "json":
		l.json = true
	case "text", "":
	default:
		return fmt.Errorf("unknown log-format %q, want text or json", format)
	}
	l.debug = debug
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	l.file = f
	return nil
}

func (l *logger) error(msg string) { l.write("error", msg) }

func (l *logger) warn(msg string) { l.write("warning", msg) }

// write appends one line. A log that can't be written must not keep a container from running.
func (l *logger) write(level, msg string) {
	out := l.file
	if out == nil {
		if level != "error" && l.debug {
			fmt.Fprintf(os.Stderr, "agentsafe: %s: %s\n", level, msg)
		}
		return
	}
	now := time.Now().Format(time.RFC3339)
	if !l.json {
		fmt.Fprintf(out, "time=%q level=%s msg=%q\n", now, level, msg)
		return
	}
	line, err := json.Marshal(struct {
		Level string `json:"level"`
		Msg   string `json:"msg"`
		Time  string `json:"time"`
	}{level, msg, now})
	if err == nil {
		out.Write(append(line, '\n')) //nolint:errcheck // see above
	}
}
