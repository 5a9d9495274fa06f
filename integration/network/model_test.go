package network

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// model stands in for the models' APIs: whoever offers it a tool for shell commands has its command run, and is told that
// the work is finished once it says what came of it. It speaks as much of Anthropic's messages, OpenAI's responses and
// Google's generateContent as the agents listen to. Source: the three APIs' public references.
type model struct {
	command string

	mu       sync.Mutex
	outcomes []string // what came of the command, as the agents have sent it
	keys     []string // HOST KEY of each request
}

const finished = "The work is finished."

// modelQuery is what the APIs are asked, as far as it matters here.
type modelQuery struct {
	body     string
	Stream   bool `json:"stream"`
	Messages []struct {
		Content json.RawMessage `json:"content"`
	} `json:"messages"` // Anthropic
	Input    []json.RawMessage `json:"input"`    // OpenAI
	Contents []json.RawMessage `json:"contents"` // Google
}

// offers returns the first of the tools that the query offers, "" for none.
func (q *modelQuery) offers(tools ...string) string {
	for _, name := range tools {
		if strings.Contains(q.body, `"name":"`+name+`"`) {
			return name
		}
	}
	return ""
}

// handler returns the answer to a request of a model's API, nil if it is none.
func (m *model) handler(r *http.Request) http.HandlerFunc {
	if m == nil || r.Method != http.MethodPost {
		return nil
	}
	answer := map[string]func(*http.Request, *modelQuery) string{"/v1/messages": m.anthropic, "/v1/responses": m.openAI}[r.URL.Path]
	if strings.HasSuffix(r.URL.Path, ":streamGenerateContent") {
		answer = m.google
	}
	if answer == nil {
		return nil
	}
	return func(rw http.ResponseWriter, r *http.Request) {
		q := &modelQuery{}
		body, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
		if err == nil {
			err = json.Unmarshal(body, q)
		}
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		q.body = strings.ReplaceAll(string(body), `"name": "`, `"name":"`)
		m.mu.Lock()
		m.keys = append(m.keys, r.Host+" "+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key")+r.Header.Get("X-Goog-Api-Key"))
		m.mu.Unlock()
		text := answer(r, q)
		rw.Header().Set("Content-Type", map[bool]string{true: "application/json", false: "text/event-stream"}[strings.HasPrefix(text, "{")])
		io.WriteString(rw, text) //nolint:errcheck // a test's client
	}
}

func (m *model) heard(outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outcomes = append(m.outcomes, outcome)
}

// said returns what the agents have said and with which keys.
func (m *model) said() (outcomes, keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.outcomes...), append([]string{}, m.keys...)
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and maps of them
	}
	return string(data)
}

func lastOf(list []json.RawMessage) string {
	if len(list) == 0 {
		return ""
	}
	return string(list[len(list)-1])
}

// streamed is one server-sent event whose data says its kind, too.
func streamed(kind, format string, args ...any) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + fmt.Sprintf(format, args...) + "}\n\n"
}

func (m *model) anthropic(_ *http.Request, q *modelQuery) string {
	last := ""
	if n := len(q.Messages); n > 0 {
		last = string(q.Messages[n-1].Content)
	}
	input := asJSON(map[string]string{"command": m.command, "description": "does the work"})
	tool, reason := q.offers("Bash", "bash"), "tool_use"
	begun := `{"type":"tool_use","id":"toolu_1","name":"` + tool + `","input":{}}`
	delta := `{"type":"input_json_delta","partial_json":` + asJSON(input) + `}`
	whole := strings.Replace(begun, `"input":{}`, `"input":`+input, 1)
	if strings.Contains(last, `"tool_result"`) {
		m.heard(last)
		tool = ""
	}
	if tool == "" {
		reason, begun, delta = "end_turn", `{"type":"text","text":""}`, `{"type":"text_delta","text":`+asJSON(finished)+`}`
		whole = strings.Replace(begun, `""`, asJSON(finished), 1)
	}
	message := func(content, reason string) string {
		return `{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[` + content + `],"stop_reason":` + reason + `,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}`
	}
	if !q.Stream {
		return message(whole, asJSON(reason))
	}
	return streamed("message_start", `,"message":%s`, message("", "null")) +
		streamed("content_block_start", `,"index":0,"content_block":%s`, begun) +
		streamed("content_block_delta", `,"index":0,"delta":%s`, delta) +
		streamed("content_block_stop", `,"index":0`) +
		streamed("message_delta", `,"delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":1}`, reason) +
		streamed("message_stop", "")
}

func (m *model) openAI(_ *http.Request, q *modelQuery) string {
	item := `{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":` + asJSON(finished) + `}]}`
	if last := lastOf(q.Input); strings.Contains(last, "function_call_output") {
		m.heard(last)
	} else if tool := q.offers("exec_command", "shell_command", "shell"); tool != "" {
		var args any
		switch tool {
		case "exec_command":
			args = map[string]any{"cmd": m.command, "yield_time_ms": 30000}
		case "shell_command":
			args = map[string]any{"command": m.command}
		case "shell":
			args = map[string]any{"command": []string{"sh", "-c", m.command}}
		}
		item = `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"` + tool + `","arguments":` + asJSON(asJSON(args)) + `}`
	}
	return streamed("response.created", `,"response":{"id":"resp_1"}`) +
		streamed("response.output_item.done", `,"output_index":0,"item":%s`, item) +
		streamed("response.completed", `,"response":{"id":"resp_1","usage":{"input_tokens":1,"input_tokens_details":null,"output_tokens":1,"output_tokens_details":null,"total_tokens":2}}`)
}

func (m *model) google(_ *http.Request, q *modelQuery) string {
	part := `{"text":` + asJSON(finished) + `}`
	if last := lastOf(q.Contents); strings.Contains(last, `"functionResponse"`) {
		m.heard(last)
	} else if tool := q.offers("run_shell_command"); tool != "" {
		part = `{"functionCall":{"id":"call_1","name":"` + tool + `","args":` + asJSON(map[string]string{"command": m.command, "description": "does the work"}) + `}}`
	}
	return `data: {"candidates":[{"content":{"role":"model","parts":[` + part + `]},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":1,"totalTokenCount":2}}` + "\n\n"
}
