package audit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// schema is the published one.
func schema(t *testing.T) (*jsonschema.Schema, *jsonschema.Resolved) {
	t.Helper()
	text, err := os.ReadFile("../../docs/evidence.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &s, r
}

// signed makes a statement as the supervisor does and returns its predicate as somebody else reads it.
func signed(t *testing.T, p *Predicate) map[string]any {
	t.Helper()
	dir := write(t, 3, Options{})
	w, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	e, err := Sign(NewStatement(w, p), localKey{make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	var statement struct {
		Type      string         `json:"_type"`
		Predicate map[string]any `json:"predicate"`
	}
	if err := json.Unmarshal(e.Payload, &statement); err != nil || statement.Type != StatementType {
		t.Fatal(err, statement.Type)
	}
	return statement.Predicate
}

// TestSchema holds statements and the published schema together: whatever is signed is described there.
func TestSchema(t *testing.T) {
	s, r := schema(t)
	if s.ID != PredicateType {
		t.Errorf("$id %q, want %q", s.ID, PredicateType)
	}
	at := time.Now().UTC()
	full := Predicate{
		Container: Container{
			ID: "c", Created: at, Engine: "docker", Image: "i", ImageDigest: "d", SpecHash: "s", Profile: "p", PolicyHash: "h", Owner: "o", Task: "t",
			TraceParent: "00", Inputs: []Input{{Path: "/x", Directory: true, SHA256: genesisHash().String(), Files: 1, Bytes: 2}},
		},
		Result: Result{ExitStatus: 137, Reason: ReasonRefused, Finished: at, Execs: 2}, Runtime: "1",
	}
	for name, p := range map[string]*Predicate{"full": &full, "least": {Container: Container{ID: "c", Created: at}, Result: Result{ExitStatus: -1, Finished: at}}} {
		got := signed(t, p)
		if err := r.Validate(got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		described(t, "", got, s)
	}
	for name, spoil := range map[string]func(p map[string]any){
		"no log": func(p map[string]any) { delete(p, "log") }, "no records": func(p map[string]any) { p["log"].(map[string]any)["records"] = 0.0 },
		"reason": func(p map[string]any) { p["result"].(map[string]any)["reason"] = "bored" }, "head": func(p map[string]any) { p["log"].(map[string]any)["head"] = "x" },
	} {
		got := signed(t, &full)
		spoil(got)
		if r.Validate(got) == nil {
			t.Errorf("%s: the schema lets it pass", name)
		}
	}
}

// described wants every key to be one of the schema's.
func described(t *testing.T, path string, value any, s *jsonschema.Schema) {
	t.Helper()
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if s.Properties[key] == nil {
				t.Errorf("the schema does not know %s", filepath.Join(path, key))
				continue
			}
			described(t, filepath.Join(path, key), inner, s.Properties[key])
		}
	case []any:
		for _, inner := range v {
			described(t, path, inner, s.Items)
		}
	}
}
