package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
)

// connect starts `agentsafectl mcp` and connects the SDK's own client to it.
func (b *bench) connect(args ...string) *mcp.ClientSession {
	b.t.Helper()
	return b.connectBy(b.wrapper(), args...)
}

// connectBy is connect for a second session in one test.
func (b *bench) connectBy(wrapper string, args ...string) *mcp.ClientSession {
	b.t.Helper()
	cmd := exec.Command(wrapper, append([]string{"mcp"}, args...)...)
	cmd.Dir, cmd.Stderr = b.workspace, os.Stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil)
	s, err := client.Connect(b.t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 30 * time.Second}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Errorf("close: %v", err)
		}
	})
	return s
}

// invoke calls a tool and decodes its structured result; failed is the text of a tool's failure.
func invoke[T any](t *testing.T, s *mcp.ClientSession, tool string, args any) (out T, failed string) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	if r.IsError {
		return out, r.Content[0].(*mcp.TextContent).Text
	}
	if err := decode(r, &out); err != nil {
		t.Fatal(err)
	}
	return out, ""
}

// decode takes what a tool has answered out of its result.
func decode(r *mcp.CallToolResult, out any) error {
	data, err := json.Marshal(r.StructuredContent)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

func TestMCP_Exec(t *testing.T) {
	s := newBench(t).connect()
	for name, c := range map[string]struct {
		in   execInput
		want func(call.Result) bool
	}{
		"script":   {execInput{Command: "echo out; echo err >&2; exit 3"}, func(r call.Result) bool { return r.Stdout == "out\n" && r.Stderr == "err\n" && r.ExitCode == 3 }},
		"args":     {execInput{Command: "echo", Args: []string{"$HOME", ";"}}, func(r call.Result) bool { return r.Stdout == "$HOME ;\n" }},
		"stdin":    {execInput{Command: "cat", Stdin: "hello"}, func(r call.Result) bool { return r.Stdout == "hello" }},
		"time-out": {execInput{Command: "trap '' TERM; sleep 100", TimeoutMS: 300}, func(r call.Result) bool { return r.TimedOut && r.ExitCode == 137 && r.DurationMillis < 20000 }},
		"escapes": {execInput{Command: `printf 'a\033[31mb\342\200\256c\377'`}, func(r call.Result) bool {
			return r.Stdout == `a\x1b[31mb\u{202e}c\xff`
		}},
		"much output": {execInput{Command: "head -c 100000000 /dev/zero", MaxOutput: 100}, func(r call.Result) bool {
			return r.StdoutTruncated == 100000000-100 && strings.HasPrefix(r.Stdout, `\x00\x00`) && r.ExitCode == 0
		}},
		"background": {execInput{Command: "sleep 1000 & echo started"}, func(r call.Result) bool { return r.Stdout == "started\n" && r.DurationMillis < 10000 }},
		"no network": {execInput{Command: "cat /sys/class/net/*/operstate | grep -c up; true"}, func(r call.Result) bool { return strings.TrimSpace(r.Stdout) == "0" }},
	} {
		t.Run(name, func(t *testing.T) {
			if r, failed := invoke[call.Result](t, s, "exec_sandboxed_command", c.in); failed != "" || !c.want(r) {
				t.Errorf("%+v %s", r, failed)
			}
		})
	}
	for name, in := range map[string]execInput{
		"no program": {Command: "/nowhere", Args: []string{"x"}}, "empty": {}, "outside": {Command: "true", Cwd: "/etc"},
		"dots": {Command: "true", Cwd: "a/../.."}, "long": {Command: "true", TimeoutMS: 1 << 40}, "huge": {Command: "true", MaxOutput: 1 << 30},
	} {
		if _, failed := invoke[call.Result](t, s, "exec_sandboxed_command", in); failed == "" || strings.Contains(failed, "the sandbox failed") {
			t.Errorf("%s: want a failure of the tool, not %q", name, failed)
		}
	}
	// What is wrong with the call itself is a protocol error.
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil {
		t.Error("an unknown tool is no error")
	}
	log, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "agentsafe://session/log"})
	if err != nil || !strings.Contains(log.Contents[0].Text, `"exit_code":3`) {
		t.Errorf("log: %v, %v", log, err)
	}
	prompt, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "work_in_sandbox"})
	if err != nil || len(prompt.Messages) != 1 {
		t.Errorf("prompt: %v, %v", prompt, err)
	}
}

func TestMCP_Parallel(t *testing.T) {
	s := newBench(t).connect()
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "exec_sandboxed_command", Arguments: execInput{Command: "sleep 0.1; echo done"}})
			if err != nil || r.IsError {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	group.Wait()
}

// TestMCP_NoZombies: what commands leave behind and ends later is reaped, or a session would run out of processes.
func TestMCP_NoZombies(t *testing.T) {
	s := newBench(t).connect("--workspace-mode", "profile")
	if _, failed := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "for i in 1 2 3 4 5; do sleep 0.1 & done"}); failed != "" {
		t.Fatal(failed)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, _ := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "cat /proc/[0-9]*/stat | grep -c '(sleep)'; true"})
		if strings.TrimSpace(r.Stdout) == "1" { // the container's own
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s processes are left", r.Stdout)
		}
	}
}

func TestMCP_Cancel(t *testing.T) {
	s := newBench(t).connect()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "exec_sandboxed_command", Arguments: execInput{Command: "(setsid sleep 4321 &); sleep 4321"}}); err == nil {
		t.Error("a cancelled call is no error")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, _ := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [4]321'; true"})
		if strings.TrimSpace(r.Stdout) == "0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cancelled command still runs: %s", r.Stdout)
		}
	}
}

func TestMCP_Files(t *testing.T) {
	b := newBench(t)
	evil := b.workspace + "-evil"
	for path, text := range map[string]string{filepath.Join(b.dir, "secret"): "secret", filepath.Join(b.workspace, "a"): "hello\n"} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(evil, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(evil+"/x", []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := b.connect()
	if r, failed := invoke[readOutput](t, s, "read_file", readInput{Path: "a"}); r.Content != "hello\n" {
		t.Errorf("%+v %s", r, failed)
	}
	if _, failed := invoke[writeOutput](t, s, "write_file", writeInput{Path: filepath.Join(b.workspace, "new"), Content: "text"}); failed != "" {
		t.Error(failed)
	}
	if r, _ := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "cat new"}); r.Stdout != "text" {
		t.Errorf("%+v", r)
	}
	if _, failed := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "ln -s ../secret link; ln -s / root; mkfifo fifo; ln -s ../../.. up"}); failed != "" {
		t.Fatal(failed)
	}
	for _, path := range []string{
		"/etc/passwd", "../secret", "link", "root/etc/passwd", "up/etc/passwd", evil + "/x", "fifo", "/proc/self/environ", ".", "", "a\x00b",
		b.workspace + "/../secret", "no/such",
	} {
		if r, failed := invoke[readOutput](t, s, "read_file", readInput{Path: path}); failed == "" {
			t.Errorf("read %q: %q", path, r.Content)
		}
		if _, failed := invoke[writeOutput](t, s, "write_file", writeInput{Path: path, Content: "x"}); failed == "" {
			t.Errorf("write %q is no failure", path)
		}
	}
	for _, path := range []string{filepath.Join(b.dir, "secret"), evil + "/x"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != "secret" {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
}

// TestMCP_HTTP: without the token nobody gets in, and nothing but a loopback address is served.
func TestMCP_HTTP(t *testing.T) {
	b := newBench(t)
	tokenFile := filepath.Join(b.dir, "token")
	cmd := exec.Command(b.wrapper(), "mcp", "--http", "127.0.0.1:18931", "--token-file", tokenFile)
	cmd.Dir, cmd.Stderr = b.workspace, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it ends
		if err := cmd.Wait(); err != nil {
			t.Errorf("end: %v", err)
		}
	}()
	var token []byte
	for range 400 {
		if token, _ = os.ReadFile(tokenFile); len(token) > 0 {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil)
	connect := func(token string) (*mcp.ClientSession, error) {
		return client.Connect(t.Context(), &mcp.StreamableClientTransport{
			Endpoint: "http://127.0.0.1:18931/", HTTPClient: &http.Client{Transport: bearer(token)}, MaxRetries: -1,
		}, nil)
	}
	if s, err := connect("wrong"); err == nil {
		s.Close()
		t.Error("a wrong token is let in")
	}
	s, err := connect(strings.TrimSpace(string(token)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, failed := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "echo over http"}); r.Stdout != "over http\n" {
		t.Errorf("%+v %s", r, failed)
	}
}

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// TestMCP_Latency prints what `true` costs in a warm container; the target is 12 ms on a quiet machine.
func TestMCP_Latency(t *testing.T) {
	s := newBench(t).connect()
	var times []time.Duration
	for range 40 {
		began := time.Now()
		if _, failed := invoke[call.Result](t, s, "exec_sandboxed_command", execInput{Command: "/bin/true", Args: []string{}}); failed != "" {
			t.Fatal(failed)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	t.Logf("true through MCP: median %v, least %v", times[len(times)/2], times[0])
}
