package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// rawClient speaks the protocol by hand, line by line, so that what the SDK's client and server agree on is checked
// against the protocol itself. Source: Model Context Protocol 2025-06-18, "Transports", stdio; JSON-RPC 2.0.
type rawClient struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	n   int
}

type rawAnswer struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Method string `json:"method"`
}

func (b *bench) raw(args ...string) *rawClient {
	b.t.Helper()
	c := &rawClient{t: b.t, cmd: exec.Command(b.wrapper(), append([]string{"mcp"}, args...)...)}
	c.cmd.Dir, c.cmd.Stderr = b.workspace, os.Stderr
	out, oerr := c.cmd.StdoutPipe()
	in, ierr := c.cmd.StdinPipe()
	if err := c.cmd.Start(); err != nil || oerr != nil || ierr != nil {
		b.t.Fatal(err, oerr, ierr)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	c.out.Buffer(nil, 8<<20)
	b.t.Cleanup(func() {
		c.in.Close()
		c.cmd.Wait() //nolint:errcheck // the client has gone
	})
	return c
}

func (c *rawClient) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// answer returns the next answer to a request, and passes over notifications.
func (c *rawClient) answer() rawAnswer {
	c.t.Helper()
	for c.out.Scan() {
		var a rawAnswer
		if err := json.Unmarshal(c.out.Bytes(), &a); err != nil {
			c.t.Fatalf("%v in %s", err, c.out.Text())
		}
		if a.Method == "" {
			return a
		}
	}
	c.t.Fatalf("the server has gone: %v", c.out.Err())
	return rawAnswer{}
}

func (c *rawClient) request(method, params string) rawAnswer {
	c.t.Helper()
	c.n++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.n, method, params))
	a := c.answer()
	if string(a.ID) != fmt.Sprint(c.n) {
		c.t.Errorf("%s: answer to %s instead of %d", method, a.ID, c.n)
	}
	return a
}

const rawHello = `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`

func TestMCP_RawClient(t *testing.T) {
	c := newBench(t).raw()
	if a := c.request("initialize", rawHello); a.Error != nil || !strings.Contains(string(a.Result), `"serverInfo"`) || !strings.Contains(string(a.Result), `"2025-06-18"`) {
		t.Fatalf("initialize: %s %+v", a.Result, a.Error)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if a := c.request("ping", `{}`); a.Error != nil || string(a.Result) != "{}" {
		t.Errorf("ping: %s %+v", a.Result, a.Error)
	}
	if a := c.request("tools/list", `{}`); a.Error != nil || strings.Count(string(a.Result), `"inputSchema"`) != 7 {
		t.Errorf("tools/list: %s %+v", a.Result, a.Error)
	}
	// Failures by their kind: of the protocol, and of the tool.
	for _, bad := range []struct {
		method, params string
		code           int
	}{
		{"no/such/method", `{}`, -32601},
		{"tools/call", `{"name":"no_such_tool"}`, -32602},
		{"resources/read", `{"uri":"file:///etc/passwd"}`, -32602},
		{"prompts/get", `{"name":"nobody"}`, -32602},
	} {
		if a := c.request(bad.method, bad.params); a.Error == nil || a.Error.Code != bad.code {
			t.Errorf("%s %s: %s %+v, want the error %d", bad.method, bad.params, a.Result, a.Error, bad.code)
		}
	}
	for _, wrong := range []string{`{"command":7}`, `{}`, `{"command":"true","surprise":1}`, `{"command":"/nowhere","args":[]}`, `{"command":"true","cwd":"/etc"}`} {
		a := c.request("tools/call", `{"name":"exec_sandboxed_command","arguments":`+wrong+`}`)
		if isTool := strings.Contains(string(a.Result), `"isError":true`); !isTool && (a.Error == nil || a.Error.Code != -32602) {
			t.Errorf("%s: %s %+v", wrong, a.Result, a.Error)
		}
	}
	a := c.request("tools/call", `{"name":"exec_sandboxed_command","arguments":{"command":"echo héllo; exit 9"}}`)
	if a.Error != nil || !strings.Contains(string(a.Result), `"structuredContent"`) || !strings.Contains(string(a.Result), `"exit_code":9`) || strings.Contains(string(a.Result), `"isError":true`) {
		t.Errorf("a command that fails is no failure of the tool: %s %+v", a.Result, a.Error)
	}
	// A huge argument, and a cancelled call whose id nobody answers for any more.
	huge := strings.Repeat("x", 1<<20)
	if a := c.request("tools/call", `{"name":"exec_sandboxed_command","arguments":{"command":"true","args":["`+huge+`"]}}`); !strings.Contains(string(a.Result), `"isError":true`) {
		t.Errorf("an argument of a megabyte: %.200s %+v", a.Result, a.Error)
	}
	c.send(`{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"exec_sandboxed_command","arguments":{"command":"sleep 600"}}}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow"}}`)
	c.send(`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
	for began := time.Now(); ; {
		a := c.answer()
		if string(a.ID) == `"after"` {
			break
		}
		if string(a.ID) != `"slow"` || time.Since(began) > time.Minute {
			t.Fatalf("answer to %s", a.ID)
		}
	}
}

// TestMCP_Garbage: what is no JSON ends the session, and the container with it (newBench looks).
func TestMCP_Garbage(t *testing.T) {
	for _, line := range []string{"garbage", `{"jsonrpc":"2.0","id":1,"method":"initialize"`, "\x00\xff\xfe", "[]"} {
		c := newBench(t).raw()
		c.send(line)
		c.in.Close()
		done := make(chan error, 1)
		go func() {
			for c.out.Scan() {
			}
			done <- c.cmd.Wait()
		}()
		select {
		case <-done: //nolint:errcheck // how it ended is of no interest
		case <-time.After(60 * time.Second):
			t.Fatalf("%q: the server does not end", line)
		}
	}
}
