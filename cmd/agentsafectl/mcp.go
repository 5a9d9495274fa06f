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
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
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
	http, tokenFile, workspaceMode string
}

func newMCPCommand(p *paths) *cobra.Command {
	f := &mcpFlags{runFlags: runFlags{paths: p}}
	c := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve a sandbox to a model's tool loop (Model Context Protocol)",
		Long: `Start one container and run tool calls in it. It speaks the Model Context
Protocol on standard input and output, or with --http on a loopback address,
where each request needs the token. The container goes when the client does.

Each call is a transaction on a layer over the workspace: the folder itself does
not change until somebody promotes what was done (agentsafectl promote). With
--workspace-mode profile the profile decides; most write to the folder directly.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Standard output is the protocol's.
			f.json, f.quiet, f.pids = true, true, 4096
			if f.workspaceMode != "overlay" && f.workspaceMode != "profile" {
				return fmt.Errorf("--workspace-mode %q: want overlay or profile", f.workspaceMode)
			}
			f.overlay = f.workspaceMode == "overlay"
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
	flags.StringVar(&f.workspaceMode, "workspace-mode", "overlay", "overlay (every call a transaction) or `profile`")
	f.addAnnotations(c)
	c.MarkFlagsMutuallyExclusive("rootfs", "image")
	return c
}

// serve runs the server until the client has gone or a signal comes.
func (f *mcpFlags) serve(ctx context.Context, o *operation) (err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	o.request.Network = "none"
	// A session's live memory is a megabyte, so that Go's collector would run at every third call and share its processors.
	const collectAt = 600 // per cent
	debug.SetGCPercent(collectAt)
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
		return nil
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
	defer context.AfterFunc(ctx, func() { h.Close() })()
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

// mcpSession is what one server tells of itself.
type mcpSession struct {
	w  *warm
	mu sync.Mutex
	// calls are the last ones, as JSON.
	calls []json.RawMessage
	// refused are what was refused while the last calls ran.
	refused []call.Denial
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
	s.addChangeTools(server)
	server.AddResource(&mcp.Resource{
		URI: "agentsafe://session/log", Name: "log", MIMEType: "application/jsonl", Description: "the last commands of this session",
	}, s.log)
	server.AddResource(&mcp.Resource{
		URI: "agentsafe://session/denials", Name: "denials", MIMEType: "text/plain", Description: "what was refused in this session, and what the profile has cut from this sandbox",
	}, s.denials)
	s.addPrompts(server)
	return server
}
