package stacks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

var (
	box    *harness.Box
	engine *harness.Docker
)

const (
	image = "stack:test"
	small = "busybox:test"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.Options{
		Prepare: func(ctx context.Context) error {
			_, err := harness.Stack(ctx)
			_, berr := harness.Busybox()
			return errors.Join(err, berr)
		},
		Setup: func(b *harness.Box) (func() error, error) {
			busybox, err := harness.Busybox()
			if err != nil {
				return nil, err
			}
			if engine, err = b.StartDocker(); err != nil {
				return nil, err
			}
			box = b
			return func() error { return engine.Stop() }, engine.Import(busybox.Tar, small)
		},
	})
}

// needStack imports the large image, once.
var needStack = sync.OnceValue(func() error {
	stack, err := harness.Stack(context.Background())
	if err != nil {
		return err
	}
	return engine.Import(stack.Tar, image)
})

// importStack imports the large image for a test.
func importStack(t *testing.T) {
	t.Helper()
	if err := needStack(); err != nil {
		t.Fatal(err)
	}
}

// runtimes are those that a stack is tried under; the profile none is for the long run.
func runtimes() []string {
	out := []string{"runc", "agentsafe"}
	if os.Getenv("AGENTSAFE_TEST_LONG") != "" {
		out = append(out, "agentsafe-none")
	}
	return out
}

// story is what a test has seen, one line for each thing.
type story struct{ strings.Builder }

func (s *story) tell(name string, values ...any) {
	fmt.Fprintf(s, "%s: %s\n", name, strings.TrimSpace(fmt.Sprintln(values...)))
}

// sameStories compares what was seen under the runtimes, the first of which is runc.
func sameStories(t *testing.T, do func(t *testing.T, runtime string) string, wants ...string) {
	t.Helper()
	var first string
	stories := make([]string, len(runtimes()))
	ok := t.Run("under", func(t *testing.T) {
		for i, runtime := range runtimes() {
			t.Run(runtime, func(t *testing.T) {
				t.Parallel()
				stories[i] = do(t, runtime)
			})
		}
	})
	if !ok {
		return
	}
	first = stories[0]
	for _, want := range wants {
		if !strings.Contains(first, want) {
			t.Errorf("under runc nothing says %q:\n%s", want, first)
		}
	}
	for i, s := range stories[1:] {
		if s != first {
			t.Errorf("not the same:\n--- runc\n%s--- %s\n%s", first, runtimes()[i+1], s)
		}
	}
}

// eventually polls until done says so.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func inspect(t *testing.T, name, format string) string {
	t.Helper()
	return engine.Must(t, "inspect", "--format", format, name)
}

// get fetches a page from the host's side; "" if there is none.
func get(t *testing.T, url string) string {
	t.Helper()
	r := box.Run(t, harness.Cmd{Args: []string{"curl", "--silent", "--max-time", "60", url}})
	if r.Exit != 0 {
		return ""
	}
	return strings.TrimSpace(r.Stdout)
}

// folder copies a directory of testdata to one of the test's own, readable to every user.
func folder(t *testing.T, name string) string {
	t.Helper()
	dir := box.TempDir(t)
	box.MustRun(t, "cp", "-r", filepath.Join("testdata", name)+"/.", dir)
	box.MustRun(t, "chmod", "-R", "a+rX", dir)
	return dir
}
