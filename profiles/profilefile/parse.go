package profilefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/agentsafe/agentsafe/profiles"
)

// APIVersion is what a file must say.
const APIVersion = "agentsafe.dev/v1"

// maxBytes bounds a file.
const maxBytes = 256 << 10

// Parse reads one profile. filename is for errors, which name the line too. The result is valid.
func Parse(r io.Reader, filename string) (*profiles.Profile, error) {
	return ParseExtending(r, filename, profiles.Builtin)
}

// ParseExtending is Parse for a file that may extend other profiles than the built-in ones: parent finds them. It
// returns a profile that may be changed.
func ParseExtending(r io.Reader, filename string, parent func(name string) (*profiles.Profile, error)) (*profiles.Profile, error) {
	p, err := parse(r, parent)
	var at *lineError
	switch {
	case errors.As(err, &at):
		return nil, fmt.Errorf("%s:%d: %w", filename, at.line, at.err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", filename, err)
	}
	return p, nil
}

func parse(r io.Reader, find parentFinder) (*profiles.Profile, error) {
	p, root, err := decode(r, find)
	if err != nil {
		return nil, err
	}
	if err := checkRules(p, root); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, &lineError{lineOf(root, err.Error()), err}
	}
	return p, contradictions(p, root)
}

type parentFinder = func(name string) (*profiles.Profile, error)

// decode reads the file; the profile is not validated.
func decode(r io.Reader, find parentFinder) (*profiles.Profile, *yaml.Node, error) {
	root, err := oneDocument(r)
	if err != nil {
		return nil, nil, err
	}
	p, err := parent(root, find)
	if err != nil {
		return nil, nil, err
	}
	if err := document(p).read(root, ""); err != nil {
		return nil, nil, err
	}
	return p, root, nil
}

// Name returns what a file calls its profile; "" if it does not say, or if the file can't be read as a profile.
func Name(r io.Reader) string {
	root, err := oneDocument(r)
	if err != nil || root.Kind != yaml.MappingNode {
		return ""
	}
	if n := child(root, "metadata"); n != nil && n.Kind == yaml.MappingNode {
		if n = child(n, "name"); n != nil {
			return n.Value
		}
	}
	return ""
}

// Places reads a file and returns where things stand in it: by a list's key the line of its first entry that is one of
// the given, or that of the key if there is none, or 0 if the file does not have the key.
func Places(r io.Reader) (func(key string, entries ...string) int, error) {
	root, err := oneDocument(r)
	if err != nil {
		return nil, err
	}
	return func(key string, entries ...string) int {
		n, line := root, 0
		for k := range strings.SplitSeq(key, ".") {
			if n, line = keyed(n, k); n == nil {
				return 0
			}
		}
		for _, item := range n.Content {
			if n.Kind == yaml.SequenceNode && slices.Contains(entries, item.Value) {
				return item.Line
			}
		}
		return line
	}, nil
}

// oneDocument reads the one document of a file.
func oneDocument(r io.Reader) (*yaml.Node, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("is empty")
		}
		return nil, notYAML(err, data)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	root := doc.Content[0]
	return root, checkNode(root, 0)
}

// notYAML says where the parser gave up: its own errors begin with "yaml: line N: " or with "yaml: ".
func notYAML(err error, data []byte) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	number, rest, _ := strings.Cut(strings.TrimPrefix(text, "line "), ": ")
	line, nerr := strconv.Atoi(number)
	if nerr != nil || !strings.HasPrefix(text, "line ") {
		return fmt.Errorf("is not YAML: %s", text)
	}
	lines := bytes.Split(data, []byte("\n"))
	if line <= len(lines) && line > 0 && bytes.HasPrefix(bytes.TrimLeft(lines[line-1], " "), []byte("\t")) {
		rest += ": indent by blanks, not by tabs"
	}
	return &lineError{line, fmt.Errorf("is not YAML: %s", rest)}
}

// maxDepth is more than the schema has.
const maxDepth = 16

// checkNode refuses what makes a file say something else than it looks like.
func checkNode(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return &lineError{n.Line, errors.New("too deep")}
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return &lineError{n.Line, errors.New("anchors and aliases are not read")}
	case n.Kind == yaml.ScalarNode && strings.ContainsFunc(n.Value, unseen):
		return &lineError{n.Line, fmt.Errorf("%s: has a control character, which nobody who reads it sees", strconv.QuoteToASCII(n.Value))}
	}
	for _, c := range n.Content {
		if err := checkNode(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// unseen are characters that speak to a terminal, or change the order in which the others are seen.
func unseen(c rune) bool {
	return unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Bidi_Control, c)
}

// parent returns a copy of what the document extends, and checks what kind of document it is.
func parent(root *yaml.Node, find parentFinder) (*profiles.Profile, error) {
	if root.Kind != yaml.MappingNode {
		return nil, &lineError{root.Line, errors.New("want a mapping with apiVersion, kind, metadata")}
	}
	for _, want := range []struct{ key, value string }{{"apiVersion", APIVersion}, {"kind", "Profile"}} {
		n := child(root, want.key)
		if n == nil {
			return nil, &lineError{root.Line, fmt.Errorf("%s: missing, want %q", want.key, want.value)}
		}
		if n.Value != want.value {
			return nil, &lineError{n.Line, fmt.Errorf("%s: %q, want %q", want.key, n.Value, want.value)}
		}
	}
	n := child(root, "extends")
	if n == nil {
		return nil, &lineError{root.Line, fmt.Errorf("extends: missing, want a profile such as %q", profiles.NameAgent)}
	}
	p, err := find(n.Value)
	if near := Nearest(n.Value, profiles.BuiltinNames()); err != nil && near != "" && near != n.Value {
		return nil, &lineError{n.Line, fmt.Errorf("extends: did you mean %s? %w", near, err)}
	}
	if err != nil {
		return nil, &lineError{n.Line, fmt.Errorf("extends: %w", err)}
	}
	if p.Unrestricted {
		return nil, &lineError{n.Line, fmt.Errorf("extends: %q has no rules that could be changed: select it by its name", n.Value)}
	}
	p.Extends, p.Name, p.Description = n.Value, "", ""
	return p, nil
}

// keyed returns the value of a key with the line of the key itself; nil if n is no mapping or does not have it.
func keyed(n *yaml.Node, key string) (value *yaml.Node, line int) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1], n.Content[i].Line
		}
	}
	return nil, 0
}

func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// lineOf finds the line for an error of Validate, which begins with the path of a key.
func lineOf(root *yaml.Node, message string) int {
	n, line := root, root.Line
	for {
		key, rest := cutKey(message)
		if n = child(n, key); n == nil {
			return line
		}
		line, message = n.Line, rest
		if n.Kind != yaml.MappingNode {
			return line
		}
	}
}

// cutKey splits "a.b: text" into "a" and "b: text".
func cutKey(s string) (key, rest string) {
	for i := range len(s) {
		if s[i] == '.' || s[i] == ':' {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }
