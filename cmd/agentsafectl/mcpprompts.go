package main

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// instructions are what a client tells its model of this server.
func (s *mcpSession) instructions() string {
	text := fmt.Sprintf("Commands run in a sandbox under the profile %q. The workspace is %s. "+
		"A command that is refused (permission denied, network unreachable) is refused by policy: trying again, or by another way, "+
		"does not help; say what was refused and go on without it. Output is cut after max_output_bytes, and characters that a "+
		"terminal or a reader would not see are written as escapes.", s.w.o.flags.profile, s.w.workspace)
	if s.w.c.State().Layers != "" {
		text += " Every command is a transaction on a layer over the workspace: the person's folder does not change. list_changes and diff " +
			"show what was done, undo takes it back, and request_promotion asks the person to take it over. Processes that a command leaves in the background are ended with it."
	}
	return text
}

// addPrompts adds what a person can ask for by name.
func (s *mcpSession) addPrompts(server *mcp.Server) {
	for _, p := range []struct {
		prompt mcp.Prompt
		text   func(args map[string]string) string
	}{
		{
			mcp.Prompt{Name: "work_in_sandbox", Description: "how to work in this sandbox"},
			func(map[string]string) string { return s.instructions() },
		},
		{
			mcp.Prompt{Name: "review_changes", Description: "look through what this session has changed, and say what it does"},
			func(map[string]string) string {
				return "Call list_changes and diff. Say for each changed file what was changed and why, name what was not asked for, " +
					"what runs by itself (hooks, CI files, package scripts, editor tasks), and what should be undone."
			},
		},
		{
			mcp.Prompt{
				Name: "hand_over", Description: "check the work and ask for its promotion",
				Arguments: []*mcp.PromptArgument{{Name: "task", Description: "what was to be done"}},
			},
			func(args map[string]string) string {
				return "The task was: " + args["task"] + "\nRun the tests. Read the diff of everything. Undo what does not belong to the task. " +
					"Then call request_promotion with the paths that belong to it and a message of one or two sentences, and tell the person the command that approves it."
			},
		},
	} {
		server.AddPrompt(&p.prompt, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Description: p.prompt.Description, Messages: []*mcp.PromptMessage{{
				Role: "user", Content: &mcp.TextContent{Text: p.text(r.Params.Arguments)},
			}}}, nil
		})
	}
}
