package layers

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/show"
)

// Name is the directory of layers below agentsafectl's data directory.
const Name = "layers"

// app is what the commands share. data and state are set by the flags of the root command, once they are parsed.
type app struct {
	data, state *string
	asRoot      func(id string) error
}

// Commands returns the commands for the layers below the data directory; state is the directory of containers. asRoot
// makes an ordinary user's process root of the user namespace that a container was set up in; it starts the program anew.
func Commands(data, state *string, asRoot func(id string) error) []*cobra.Command {
	a := &app{data, state, asRoot}
	return []*cobra.Command{
		a.logCommand(), a.showCommand(), a.diffCommand(), a.undoCommand(), a.redoCommand(), a.checkpointCommand(),
		a.restoreCommand(), a.checkCommand(), a.promoteCommand(), a.requestsCommand(), a.exportCommand(),
		a.importCommand(), a.layersCommand(), a.uiCommand(),
	}
}

func (a *app) store() string { return filepath.Join(*a.data, Name) }

// find completes the beginning of an id, if it is of one container only. The newest of containers of one id counts.
func (a *app) find(id string) (string, error) {
	list, err := layer.List(a.store())
	if err != nil {
		return "", err
	}
	found := ""
	for _, i := range list {
		switch {
		case i.ID == id:
			return id, nil
		case strings.HasPrefix(i.ID, id) && found != "":
			return "", fmt.Errorf("%q is the beginning of several containers' ids: write more of it (agentsafectl layers lists them)", id)
		case strings.HasPrefix(i.ID, id):
			found = i.ID
		}
	}
	if found == "" || id == "" {
		return "", fmt.Errorf("container %q: %w (agentsafectl layers lists them)", id, layer.ErrNotExist)
	}
	return found, nil
}

// open opens the layers of a container, with everything decided that can be.
func (a *app) open(id string) (*layer.Layers, error) {
	full, err := a.find(id)
	if err != nil {
		return nil, err
	}
	if err := a.asRoot(full); err != nil {
		return nil, err
	}
	l, err := layer.Open(a.store(), full)
	if err != nil {
		return nil, err
	}
	if err := l.Settle(); err != nil {
		l.Close()
		return nil, err
	}
	if err := l.Stuck(); err != nil {
		fmt.Fprintln(os.Stderr, "agentsafectl: note:", show.Safe(err.Error()))
	}
	if l.Torn() {
		fmt.Fprintln(os.Stderr, "agentsafectl: note: the machine went down while this container ran: the last seconds of its layer may be missing")
	}
	return l, nil
}

// reference parses ID, ID@N and ID@N..M; numbers are 0 where there are none.
func reference(s string) (id string, from, to int, err error) {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s, 0, 0, nil
	}
	first, last, isRange := strings.Cut(s[at+1:], "..")
	if !isRange {
		last = first
	}
	from, ferr := strconv.Atoi(first)
	to, terr := strconv.Atoi(last)
	if ferr != nil || terr != nil || from < 1 || to < 1 {
		if strings.Contains(s[at+1:], "T") { // the layers of an earlier container of the id
			return s, 0, 0, nil
		}
		return "", 0, 0, fmt.Errorf("%q: want ID@N, with the number of a transaction from agentsafectl log", s)
	}
	return s[:at], from, to, nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// painter colours diffs on a terminal.
func painter(w io.Writer) func(what, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" {
		return nil
	}
	codes := map[string]string{"head": "1", "hunk": "36", "add": "32", "del": "31", "warn": "33"}
	return func(what, text string) string {
		if codes[what] == "" {
			return text
		}
		return "\x1b[" + codes[what] + "m" + text + "\x1b[0m"
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// bytesText writes a size for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, name := float64(n)/unit, 0
	for value >= unit && name < 3 {
		value, name = value/unit, name+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[name])
}
