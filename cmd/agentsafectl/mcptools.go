package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

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
	Bytes       int `json:"bytes"`
	Transaction int `json:"transaction,omitempty"`
}

func (s *mcpSession) exec(ctx context.Context, _ *mcp.CallToolRequest, in execInput) (*mcp.CallToolResult, *call.Result, error) {
	r, err := s.w.request(&in)
	if err != nil {
		return nil, nil, err
	}
	out, err := s.w.exec(ctx, *r)
	if err != nil {
		s.note(map[string]any{"command": r.Args, "error": err.Error()})
		var command *call.CommandError
		if errors.As(err, &command) || ctx.Err() != nil {
			return nil, nil, err // the tool's failure, which the model sees
		}
		return nil, nil, fmt.Errorf("the sandbox failed, not the command: %w", err)
	}
	s.note(map[string]any{
		"command": r.Args, "exit_code": out.ExitCode, "duration_ms": out.DurationMillis, "timed_out": out.TimedOut,
		"transaction": out.Transaction, "files_changed": len(out.FilesChanged) + out.FilesOmitted, "denials": len(out.Denials),
	}, out.Denials...)
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
	return nil, &readOutput{Content: call.Visible(string(data)), Size: size, Truncated: in.Offset+int64(len(data)) < size}, nil
}

func (s *mcpSession) write(ctx context.Context, _ *mcp.CallToolRequest, in writeInput) (*mcp.CallToolResult, *writeOutput, error) {
	if s.w.c.State().Layers == "" {
		if err := s.w.writeFile(in.Path, in.Content); err != nil {
			return nil, nil, err
		}
		return nil, &writeOutput{Bytes: len(in.Content)}, nil
	}
	out, err := s.w.writeByExec(ctx, in.Path, in.Content)
	if err != nil {
		return nil, nil, err
	}
	s.note(map[string]any{"write_file": in.Path, "bytes": len(in.Content), "transaction": out.Transaction})
	return nil, &writeOutput{len(in.Content), out.Transaction}, nil
}

// maxCalls bounds the session's log.
const maxCalls = 1000

func (s *mcpSession) note(done any, refused ...call.Denial) {
	data, err := json.Marshal(done)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, refused...)
	s.refused = s.refused[max(0, len(s.refused)-maxCalls):]
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
	return resource(r.Params.URI, "application/jsonl", call.Visible(b.String())), nil
}

func (s *mcpSession) denials(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	d, err := s.w.c.Detail()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	listed, err := s.writeDenials(&b)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for _, d := range s.refused {
		if !listed || d.Kind == "memory" || d.Kind == "processes" { // of these the log tells at the end
			fmt.Fprintln(&b, "refused:", d)
		}
	}
	s.mu.Unlock()
	for _, n := range d.Policy.Notes {
		fmt.Fprintln(&b, "cut:", n)
	}
	return resource(r.Params.URI, "text/plain", call.Visible(b.String())), nil
}

// writeDenials writes what the container's log of denials has; false if it has none.
func (s *mcpSession) writeDenials(b *strings.Builder) (bool, error) {
	f, err := s.w.c.OpenDenials()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		d, err := denials.ParseLine(lines.Bytes())
		if err != nil || d.Kind == denials.Policy {
			continue // a line that is being written; what was cut is told below
		}
		fmt.Fprintf(b, "refused: %s: %s", d.Kind, d.What)
		for _, more := range []struct{ before, text string }{{": ", d.Why}, {" [", d.Rule}, {" allowed by ", d.Allow}} {
			if more.text == "" {
				continue
			}
			b.WriteString(more.before + more.text)
			if more.before == " [" {
				b.WriteString("]")
			}
		}
		if d.Count > 1 {
			fmt.Fprintf(b, " (%d times)", d.Count)
		}
		b.WriteByte('\n')
	}
	return true, nil
}

func resource(uri, kind, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: kind, Text: text}}}
}
