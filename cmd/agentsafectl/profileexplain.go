package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/refusals"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/profiles/profilefile"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// explanation is one line of the answer.
type explanation struct {
	Question string `json:"question"`
	profiles.Answer
	// Where is the place of the rule: FILE:LINE, or the profile that it is inherited from.
	Where string `json:"where,omitempty"`
}

// questions are the flags of profile explain.
type questions struct {
	syscalls, paths, hosts, variables []string
	connects, listens                 []uint
	denials                           string
	home, workspace                   string
	json                              bool
}

func newExplainCommand() *cobra.Command {
	q := &questions{}
	c := &cobra.Command{
		Use:   "explain PROFILE [--syscall NAME] [--path PATH] [--host HOST[:PORT]] [--env NAME] [--connect PORT] [--listen PORT] [--denials FILE]",
		Short: "Say which rule decides about something, and what would allow it",
		Long: profileArgument + " Of a file the place of the rule is named, too.\n\n" +
			"--denials reads what a task was refused (its denials.jsonl, or agentsafectl denials --json; - is standard\n" +
			"input) and says where the rule of each stands.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := viewProfile(args[0])
			if err != nil {
				return err
			}
			out, err := q.answers(c.InOrStdin(), p)
			if err != nil {
				return err
			}
			if len(out) == 0 && q.denials == "" {
				return errors.New("name something to explain: --syscall, --path, --host, --env, --connect, --listen or --denials")
			}
			if err := q.locate(out, args[0], p); err != nil {
				return err
			}
			return printExplanations(c, out, q.json)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&q.syscalls, "syscall", nil, "`name` of a system call")
	f.StringSliceVar(&q.paths, "path", nil, "`path` in the container")
	f.StringSliceVar(&q.hosts, "host", nil, "`host`, with a port or without")
	f.StringSliceVar(&q.variables, "env", nil, "`name` of a variable")
	f.UintSliceVar(&q.connects, profiles.PortConnect, nil, "TCP `port` to connect to")
	f.UintSliceVar(&q.listens, profiles.PortListen, nil, "TCP `port` to listen on")
	f.StringVar(&q.denials, "denials", "", "`file` with denials, one JSON object a line")
	f.StringVar(&q.home, "home", "/root", "`directory` that $HOME stands for")
	f.StringVar(&q.workspace, "workspace", "/workspace", "`directory` that $WORKSPACE stands for")
	f.BoolVar(&q.json, "json", false, "print JSON")
	return c
}

// answers asks the profile.
func (q *questions) answers(stdin io.Reader, p *profiles.Profile) ([]explanation, error) {
	out := []explanation{}
	add := func(question string, a profiles.Answer) {
		out = append(out, explanation{Question: question, Answer: a})
	}
	for _, s := range q.syscalls {
		add("syscall "+s, profiles.ExplainSyscall(p, s, runtime.GOARCH))
	}
	resolved := profiles.Resolve(p, q.home, q.workspace)
	for _, f := range q.paths {
		if !strings.HasPrefix(f, "/") {
			return nil, fmt.Errorf("--path %s: not absolute: want a path as the container has it", f)
		}
		for _, a := range profiles.ExplainPath(resolved, f) {
			add("path "+f, a)
		}
	}
	for _, h := range q.hosts {
		add("host "+h, profiles.ExplainHost(p, h))
	}
	for _, v := range q.variables {
		add("variable "+v, profiles.ExplainEnv(p, v))
	}
	for _, set := range []struct {
		use   string
		ports []uint
	}{{profiles.PortConnect, q.connects}, {profiles.PortListen, q.listens}} {
		for _, port := range set.ports {
			if port > math.MaxUint16 {
				return nil, fmt.Errorf("--%s %d: not a port", set.use, port)
			}
			add(fmt.Sprintf("%s %d", set.use, port), profiles.ExplainPort(p, set.use, uint16(port)))
		}
	}
	if q.denials == "" {
		return out, nil
	}
	denied, err := readDenials(q.denials, stdin)
	return append(out, denied...), err
}

// readDenials takes what a task was refused as it was written down, with the rule that it names.
func readDenials(file string, stdin io.Reader) ([]explanation, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	var out []explanation
	const maxLine = 1 << 20
	s := bufio.NewScanner(in)
	s.Buffer(nil, maxLine)
	for line := 1; s.Scan(); line++ {
		if len(s.Bytes()) == 0 {
			continue
		}
		d, err := denials.ParseLine(s.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, line, err)
		}
		if d.Kind == denials.Note {
			continue
		}
		out = append(out, explanation{Question: string(d.Kind) + " " + d.What, Answer: profiles.Answer{Verdict: profiles.VerdictRefused, Rule: d.Rule, Why: d.Why, Allow: d.Allow}})
	}
	return out, s.Err()
}

// locate finds the rules in the file that the profile is of, if it is of one.
func (q *questions) locate(list []explanation, name string, p *profiles.Profile) error {
	if !strings.Contains(name, "/") {
		return nil
	}
	f, err := openProfile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	place, err := profilefile.Places(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for i := range list {
		key, entry, _ := strings.Cut(list[i].Rule, " ")
		switch line := place(key, q.spellings(entry)...); {
		case line > 0:
			list[i].Where = name + ":" + strconv.Itoa(line)
		case profilefile.Describe(key) != "":
			list[i].Where = "inherited from " + p.Extends
		}
	}
	return nil
}

// spellings are how a file can have written an entry, whose variables are expanded.
func (q *questions) spellings(entry string) []string {
	out := []string{entry}
	for _, v := range []struct{ name, value string }{{"$WORKSPACE", q.workspace}, {"$HOME", q.home}, {"~", q.home}} {
		if rest, ok := strings.CutPrefix(entry, v.value); ok && v.value != "" && (rest == "" || rest[0] == '/') {
			out = append(out, v.name+rest)
		}
	}
	return out
}

func printExplanations(c *cobra.Command, out []explanation, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(c.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	w := c.OutOrStdout()
	for _, e := range out {
		// What a task was refused is in its own words.
		for _, s := range []*string{&e.Question, &e.Rule, &e.Allow} {
			*s = refusals.Printable(*s)
		}
		why := ""
		switch lines := strings.Split(e.Why, "\n"); {
		case len(lines) > 1:
			for _, l := range lines {
				why += "\n    " + refusals.Printable(l)
			}
		case e.Why != "":
			why = " (" + refusals.Printable(e.Why) + ")"
		}
		where := ""
		if e.Where != "" {
			where = ", " + e.Where
		}
		rule := ""
		if e.Rule != "" {
			rule = " by " + e.Rule
		}
		fmt.Fprintf(w, "%s: %s%s%s%s\n", e.Question, e.Verdict, rule, where, why)
		if e.Allow != "" {
			fmt.Fprintf(w, "    allowed by %s\n", e.Allow)
		}
	}
	return nil
}
