package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Limits of one call.
const (
	defaultCallTimeout = 2 * time.Minute
	maxCallTimeout     = time.Hour
	defaultOutput      = 64 << 10
	maxOutput          = 1 << 20
)

// mcpFlags are run's, and where to serve.
type mcpFlags struct {
	runFlags
	http, tokenFile string
}

func newMCPCommand(p *paths) *cobra.Command {
	f := &mcpFlags{runFlags: runFlags{paths: p}}
	c := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve a sandbox to a model's tool loop (Model Context Protocol)",
		Long: `Start one container and run tool calls in it: exec_sandboxed_command, read_file
and write_file. It speaks the Model Context Protocol on standard input and
output, or with --http on a loopback address, where each request needs the
token. The container goes when the client does.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Standard output is the protocol's.
			f.json, f.quiet, f.pids = true, true, 4096
			return f.open(c.Context(), []string{"/bin/sh", "-c", warmCommand}, f.serve)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.id, "id", "", "`name` of the container (default: random)")
	flags.StringVar(&f.profile, "profile", "agent", "`policy` to run under: a name, or the path of a file (with a slash)")
	flags.StringVar(&f.rootfs, "rootfs", "", "run on the root file system in `dir`; it is not changed")
	flags.StringVar(&f.image, "image", "", "run on the image in `file.tar` (docker save or OCI layout)")
	flags.StringVar(&f.imageName, "image-name", "", "which image, if the file holds several")
	flags.StringVar(&f.workspace, "workspace", "", "`folder` to work in (default on the host's programs: the current one)")
	flags.StringVar(&f.user, "user", "", "run as `uid[:gid]`")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE`, or pass NAME on from this environment")
	flags.StringVar(&f.memory, "memory", "", "memory limit in bytes, or with k, m, g")
	flags.Float64Var(&f.cpus, "cpus", 0, "CPU limit in cores")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the whole session after this `time`")
	flags.StringVar(&f.http, "http", "", "serve streamable HTTP at `127.0.0.1:PORT` in place of standard input and output")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` to write the token for --http to (default: print it to standard error)")
	c.MarkFlagsMutuallyExclusive("rootfs", "image")
	return c
}

// serve runs the server until the client has gone or a signal comes.
func (f *mcpFlags) serve(ctx context.Context, o *operation) (err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	o.request.Network = "none"
	release, err := o.claim(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	w, err := o.startWarm(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	server := newMCPServer(w)
	if f.http != "" {
		return f.serveHTTP(ctx, server)
	}
	err = server.Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // we were asked to end
	}
	return err
}

// serveHTTP serves on a loopback address, to whoever has the token.
func (f *mcpFlags) serveHTTP(ctx context.Context, server *mcp.Server) error {
	addr, err := net.ResolveTCPAddr("tcp", f.http)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	if !addr.IP.IsLoopback() {
		return fmt.Errorf("--http %s: not a loopback address", f.http)
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	secret := make([]byte, 24)
	rand.Read(secret) // it never fails: crypto/rand, Go 1.24
	token := hex.EncodeToString(secret)
	if f.tokenFile != "" {
		err = os.WriteFile(f.tokenFile, []byte(token+"\n"), 0o600)
	} else {
		_, err = fmt.Fprintf(os.Stderr, "agentsafectl: http://%s/ token %s\n", l.Addr(), token)
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	const headerTimeout = 10 * time.Second
	h := &http.Server{
		Handler:           withToken(token, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)),
		ReadHeaderTimeout: headerTimeout,
	}
	defer context.AfterFunc(ctx, func() { h.Close() })() //nolint:errcheck // it ends
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func withToken(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1 {
			http.Error(w, "the token of this session is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type execInput struct {
	Command   string   `json:"command" jsonschema:"program to run, or a shell script if args is absent"`
	Args      []string `json:"args,omitempty" jsonschema:"arguments; with them no shell is used"`
	Cwd       string   `json:"cwd,omitempty" jsonschema:"directory in the workspace"`
	TimeoutMS int64    `json:"timeout_ms,omitempty" jsonschema:"time limit in milliseconds, two minutes by default"`
	MaxOutput int      `json:"max_output_bytes,omitempty" jsonschema:"bytes to keep of each stream, 65536 by default"`
	Stdin     string   `json:"stdin,omitempty" jsonschema:"standard input"`
}

type readInput struct {
	Path   string `json:"path" jsonschema:"file in the workspace"`
	Offset int64  `json:"offset,omitempty" jsonschema:"byte to start at"`
	Limit  int    `json:"limit,omitempty" jsonschema:"bytes to read, 65536 by default"`
}

type readOutput struct {
	Content   string `json:"content"`
	Size      int64  `json:"size"`
	Truncated bool   `json:"truncated"`
}

type writeInput struct {
	Path    string `json:"path" jsonschema:"file in the workspace; it is made if it is missing, its directory is not"`
	Content string `json:"content" jsonschema:"the whole new content"`
}

type writeOutput struct {
	Bytes int `json:"bytes"`
}

// mcpSession is what one server tells of itself.
type mcpSession struct {
	w  *warm
	mu sync.Mutex
	// calls are the last ones, as JSON.
	calls []json.RawMessage
}

// newMCPServer makes the server for a container.
func newMCPServer(w *warm) *mcp.Server {
	s := &mcpSession{w: w}
	server := mcp.NewServer(&mcp.Implementation{Name: "agentsafe", Version: version}, &mcp.ServerOptions{Instructions: s.instructions()})
	mcp.AddTool(server, &mcp.Tool{
		Name: "exec_sandboxed_command", Description: "Run a command in the sandbox and return its output and exit code. The file system outside of the workspace is private or read-only, and there is no network unless the profile grants one.",
	}, s.exec)
	mcp.AddTool(server, &mcp.Tool{
		Name: "read_file", Description: "Read a text file of the workspace.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, s.read)
	mcp.AddTool(server, &mcp.Tool{
		Name: "write_file", Description: "Replace the content of a file of the workspace, or make the file.",
	}, s.write)
	server.AddResource(&mcp.Resource{
		URI: "agentsafe://session/log", Name: "log", MIMEType: "application/jsonl", Description: "the last commands of this session",
	}, s.log)
	server.AddResource(&mcp.Resource{
		URI: "agentsafe://session/denials", Name: "denials", MIMEType: "text/plain", Description: "what the profile has cut from this sandbox",
	}, s.denials)
	server.AddPrompt(&mcp.Prompt{Name: "work_in_sandbox", Description: "how to work in this sandbox"},
		func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: s.instructions()}}}}, nil
		})
	return server
}

func (s *mcpSession) instructions() string {
	return fmt.Sprintf("Commands run in a sandbox under the profile %q. The workspace is %s. "+
		"A command that is refused (permission denied, network unreachable) is refused by policy: trying again, or by another way, "+
		"does not help; say what was refused and go on without it. Output is cut after max_output_bytes, and characters that a "+
		"terminal or a reader would not see are written as escapes.", s.w.o.flags.profile, s.w.workspace)
}

func (s *mcpSession) exec(ctx context.Context, _ *mcp.CallToolRequest, in execInput) (*mcp.CallToolResult, *execResult, error) {
	r, err := s.w.request(&in)
	if err != nil {
		return nil, nil, err
	}
	out, err := s.w.exec(ctx, *r)
	if err != nil {
		s.note(map[string]any{"command": r.Args, "error": err.Error()})
		var command *errCommand
		if errors.As(err, &command) || ctx.Err() != nil {
			return nil, nil, err // the tool's failure, which the model sees
		}
		return nil, nil, fmt.Errorf("the sandbox failed, not the command: %w", err)
	}
	s.note(map[string]any{"command": r.Args, "exit_code": out.ExitCode, "duration_ms": out.DurationMillis, "timed_out": out.TimedOut})
	return nil, out, nil
}

// request checks the input of a call.
func (w *warm) request(in *execInput) (*execRequest, error) {
	r := &execRequest{Stdin: in.Stdin, Timeout: defaultCallTimeout, MaxOutput: defaultOutput}
	switch {
	case in.Command == "":
		return nil, errors.New("command: is empty")
	case strings.ContainsRune(in.Command+strings.Join(in.Args, ""), 0):
		return nil, errors.New("command: has a zero byte")
	case in.TimeoutMS < 0 || in.TimeoutMS > maxCallTimeout.Milliseconds():
		return nil, fmt.Errorf("timeout_ms: %d is not between 1 and %d", in.TimeoutMS, maxCallTimeout.Milliseconds())
	case in.MaxOutput < 0 || in.MaxOutput > maxOutput:
		return nil, fmt.Errorf("max_output_bytes: %d is not between 1 and %d", in.MaxOutput, maxOutput)
	}
	if r.Args = append([]string{in.Command}, in.Args...); in.Args == nil {
		r.Args = []string{"/bin/sh", "-c", in.Command}
	}
	if in.TimeoutMS > 0 {
		r.Timeout = time.Duration(in.TimeoutMS) * time.Millisecond
	}
	if in.MaxOutput > 0 {
		r.MaxOutput = in.MaxOutput
	}
	if in.Cwd != "" {
		name, err := w.relative(in.Cwd)
		if err != nil {
			return nil, fmt.Errorf("cwd: %w", err)
		}
		if r.Cwd = w.workspace + "/" + name; strings.Contains("/"+name+"/", "/../") {
			return nil, fmt.Errorf("cwd: path %q: %w", in.Cwd, errOutside)
		}
	}
	return r, nil
}

func (s *mcpSession) read(_ context.Context, _ *mcp.CallToolRequest, in readInput) (*mcp.CallToolResult, *readOutput, error) {
	if in.Limit == 0 {
		in.Limit = defaultOutput
	}
	if in.Offset < 0 || in.Limit < 0 || in.Limit > maxFileBytes {
		return nil, nil, fmt.Errorf("offset, limit: want at least 0, and at most %d bytes", maxFileBytes)
	}
	data, size, err := s.w.readFile(in.Path, in.Offset, in.Limit)
	if err != nil {
		return nil, nil, err
	}
	return nil, &readOutput{Content: visible(string(data)), Size: size, Truncated: in.Offset+int64(len(data)) < size}, nil
}

func (s *mcpSession) write(_ context.Context, _ *mcp.CallToolRequest, in writeInput) (*mcp.CallToolResult, *writeOutput, error) {
	if err := s.w.writeFile(in.Path, in.Content); err != nil {
		return nil, nil, err
	}
	return nil, &writeOutput{len(in.Content)}, nil
}

// maxCalls bounds the session's log.
const maxCalls = 1000

func (s *mcpSession) note(call any) {
	data, err := json.Marshal(call)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == maxCalls {
		s.calls = s.calls[1:]
	}
	s.calls = append(s.calls, data)
}

func (s *mcpSession) log(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, c := range s.calls {
		b.Write(c)
		b.WriteByte('\n')
	}
	return resource(r.Params.URI, "application/jsonl", visible(b.String())), nil
}

func (s *mcpSession) denials(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	d, err := s.w.c.Detail()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, n := range d.Policy.Notes {
		fmt.Fprintln(&b, n)
	}
	return resource(r.Params.URI, "text/plain", visible(b.String())), nil
}

func resource(uri, kind, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: kind, Text: text}}}
}
