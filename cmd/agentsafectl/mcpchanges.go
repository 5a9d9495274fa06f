package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/call"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
	"github.com/agentsafe/agentsafe/runtime/audit"
)

// addChangeTools adds the tools about what the session has changed.
func (s *mcpSession) addChangeTools(server *mcp.Server) {
	readOnly := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(server, &mcp.Tool{
		Name: "list_changes", Annotations: readOnly,
		Description: "List what this session has changed in the workspace, compared with the folder of the host, or what one transaction changed; and the last transactions. Every command is a transaction of its own.",
	}, s.listChanges)
	mcp.AddTool(server, &mcp.Tool{
		Name: "diff", Annotations: readOnly,
		Description: "Show what this session has changed as a unified diff: everything, or transactions from one to another.",
	}, s.diff)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "undo",
		Description: "Take a transaction back. It is refused, and nothing changes, if later ones have touched the same paths: undo those first.",
	}, s.undo)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "request_promotion",
		Description: "Ask a person to write changes of this session to the folder of the host. This writes nothing: it leaves a request that a person approves or not.",
	}, s.requestPromotion)
}

type listInput struct {
	Transaction int `json:"transaction,omitempty" jsonschema:"number of a transaction; 0 compares with the host's folder"`
}

type listOutput struct {
	Changes      []call.FileChange `json:"changes"`
	Omitted      int               `json:"omitted,omitempty"`
	Transactions []transactionInfo `json:"transactions"`
}

// transactionInfo is a transaction as a model sees it.
type transactionInfo struct {
	N        int          `json:"n"`
	Command  string       `json:"command"`
	Status   layer.Status `json:"status"`
	ExitCode *int         `json:"exit_code,omitempty"`
	Changes  int          `json:"changes"`
	Bytes    int64        `json:"bytes"`
	Started  time.Time    `json:"started"`
}

// maxTransactions bounds what list_changes tells of the past.
const maxTransactions = 50

func (s *mcpSession) listChanges(_ context.Context, _ *mcp.CallToolRequest, in listInput) (*mcp.CallToolResult, *listOutput, error) {
	l, err := call.Layers(s.w.c)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	cmp, err := compareLayers(l, in.Transaction, in.Transaction)
	if err != nil {
		return nil, nil, err
	}
	defer cmp.Close()
	out := &listOutput{Transactions: []transactionInfo{}}
	out.Changes, out.Omitted = call.Changes(cmp)
	for _, t := range l.Transactions[max(0, len(l.Transactions)-maxTransactions):] {
		const width = 200
		command := show.SafeName(strings.Join(t.Command, " "))
		out.Transactions = append(out.Transactions, transactionInfo{
			t.N, strings.ToValidUTF8(command[:min(len(command), width)], ""), t.Status, t.Exit, t.Changes, t.Bytes, t.Started,
		})
	}
	return nil, out, nil
}

func compareLayers(l *layer.Layers, from, to int) (*layer.Comparison, error) {
	if from == 0 {
		return l.CompareHost()
	}
	if to == 0 {
		to = from
	}
	return l.CompareRange(from, to)
}

type diffInput struct {
	Transaction int `json:"transaction,omitempty" jsonschema:"number of the first transaction; 0 compares with the host's folder"`
	To          int `json:"to,omitempty" jsonschema:"number of the last transaction, the first one by default"`
	MaxBytes    int `json:"max_bytes,omitempty" jsonschema:"bytes to return, 65536 by default"`
}

type diffOutput struct {
	Diff      string `json:"diff"`
	Truncated int64  `json:"truncated_bytes,omitempty"`
}

// firstBytes keeps the beginning of what is written to it.
type firstBytes struct {
	max     int
	text    strings.Builder
	dropped int64
}

// Write implements io.Writer.
func (b *firstBytes) Write(p []byte) (int, error) {
	n := min(len(p), b.max-b.text.Len())
	b.text.Write(p[:n])
	b.dropped += int64(len(p) - n)
	return len(p), nil
}

func (s *mcpSession) diff(_ context.Context, _ *mcp.CallToolRequest, in diffInput) (*mcp.CallToolResult, *diffOutput, error) {
	if in.MaxBytes == 0 {
		in.MaxBytes = defaultOutput
	}
	if in.MaxBytes < 0 || in.MaxBytes > maxOutput {
		return nil, nil, fmt.Errorf("max_bytes: %d is not between 1 and %d", in.MaxBytes, maxOutput)
	}
	l, err := call.Layers(s.w.c)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	cmp, err := compareLayers(l, in.Transaction, in.To)
	if err != nil {
		return nil, nil, err
	}
	defer cmp.Close()
	b := &firstBytes{max: in.MaxBytes}
	for i := range cmp.List {
		c := &cmp.List[i]
		one := show.Comparison{Old: c.Old, New: c.New, Changes: c.Changes}
		if err := one.Unified(b, c.Workspace.Destination+"/", nil); err != nil {
			return nil, nil, err
		}
	}
	return nil, &diffOutput{strings.ToValidUTF8(b.text.String(), ""), b.dropped}, nil
}

type undoInput struct {
	Transaction int `json:"transaction,omitempty" jsonschema:"number of the transaction; 0 is the last one that changed something"`
}

type undoOutput struct {
	Transaction int          `json:"transaction"`
	Status      layer.Status `json:"status"`
}

func (s *mcpSession) undo(_ context.Context, _ *mcp.CallToolRequest, in undoInput) (*mcp.CallToolResult, *undoOutput, error) {
	l, err := call.Layers(s.w.c)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	n := in.Transaction
	for i := len(l.Transactions) - 1; n == 0 && i >= 0; i-- {
		if t := &l.Transactions[i]; t.Status == layer.StatusCommitted && t.Changes > 0 {
			n = t.N
		}
	}
	if n == 0 {
		return nil, nil, errors.New("nothing to undo: no transaction of this session has changed anything")
	}
	if err := l.Undo(n); err != nil {
		return nil, nil, conflictText(err)
	}
	s.note(map[string]any{"undo": n})
	return nil, &undoOutput{n, layer.StatusUndone}, nil
}

// conflictText names the paths of a conflict.
func conflictText(err error) error {
	conflict, ok := errors.AsType[*layer.ConflictError](err)
	if !ok {
		return err
	}
	var b strings.Builder
	for _, c := range conflict.Conflicts[:min(len(conflict.Conflicts), maxTransactions)] {
		fmt.Fprintf(&b, "\n  %s: %s", show.SafeName(path.Join(c.Workspace, c.Path)), show.Safe(c.Reason))
	}
	return fmt.Errorf("%w%s", err, b.String())
}

type promotionInput struct {
	Paths   []string `json:"paths,omitempty" jsonschema:"files or directories of the workspace; none means everything that was changed"`
	Message string   `json:"message,omitempty" jsonschema:"why, for the person who decides"`
}

type promotionOutput struct {
	Request   int                 `json:"request"`
	Digest    string              `json:"digest"`
	Files     []call.FileChange   `json:"files"`
	LeftOut   []call.FileConflict `json:"left_out,omitempty"`
	Conflicts []call.FileConflict `json:"conflicts,omitempty"`
	// Approve is the command for the person.
	Approve string `json:"approve"`
}

// requestPromotion leaves a request. It never promotes: that is a person's word, on the host.
func (s *mcpSession) requestPromotion(_ context.Context, _ *mcp.CallToolRequest, in promotionInput) (*mcp.CallToolResult, *promotionOutput, error) {
	for _, p := range in.Paths {
		if _, err := s.w.relative(p); err != nil {
			return nil, nil, err
		}
	}
	l, err := call.Layers(s.w.c)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	r, plan, err := l.AddRequest("mcp", in.Message, in.Paths)
	if err != nil {
		return nil, nil, conflictText(err)
	}
	out := &promotionOutput{
		Request: r.N, Digest: r.Digest, Files: []call.FileChange{},
		Approve: fmt.Sprintf("agentsafectl promote --request %d %s", r.N, s.w.c.ID()),
	}
	for i := range plan.Items {
		item := &plan.Items[i]
		name := show.SafeName(path.Join(item.Workspace, item.Path))
		switch {
		case item.Conflict != "":
			out.Conflicts = append(out.Conflicts, call.FileConflict{Path: name, Reason: show.Safe(item.Conflict)})
		case item.Left != "":
			out.LeftOut = append(out.LeftOut, call.FileConflict{Path: name, Reason: show.Safe(item.Left)})
		case len(out.Files) < call.MaxFiles:
			out.Files = append(out.Files, call.FileChange{Path: name, Op: item.Op, Kind: item.Kind, Size: item.New.Size})
		}
	}
	err = s.w.owner.Record(audit.TypePromotion, map[string]any{
		"state": "requested", "by": "mcp", "request": r.N, "digest": r.Digest, "items": r.Items, "paths": r.Paths, "message": r.Message,
	})
	if err != nil {
		return nil, nil, err
	}
	s.note(map[string]any{"request_promotion": r.N, "files": r.Items, "digest": r.Digest})
	return nil, out, nil
}
