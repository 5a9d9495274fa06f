package stacks

import (
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// project is a compose project in a folder of its own.
type project struct {
	name, dir string
	env       []string
}

func (p *project) do(t *testing.T, args ...string) harness.Result {
	t.Helper()
	return box.Run(t, harness.Cmd{
		Args: append([]string{"/usr/bin/docker-compose", "--project-name", p.name, "--file", "compose.yaml"}, args...),
		Dir:  p.dir, Env: p.env, Timeout: 4 * time.Minute,
	})
}

func (p *project) must(t *testing.T, args ...string) string {
	t.Helper()
	r := p.do(t, args...)
	if r.Exit != 0 {
		t.Fatalf("want success:\n%v", r)
	}
	return strings.TrimSpace(r.Stdout)
}

// container is the first container of a service. Asking Docker is quicker than starting compose.
func (p *project) container(t *testing.T, service string) string {
	t.Helper()
	ids := engine.Must(t, "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+p.name,
		"--filter", "label=com.docker.compose.service="+service, "--filter", "label=com.docker.compose.container-number=1", "--filter", "label=com.docker.compose.oneoff=False")
	id, _, _ := strings.Cut(ids, "\n")
	return id
}

// url is where a page of the application is published.
func (p *project) url(t *testing.T, path string) string {
	t.Helper()
	r := engine.Do(t, "port", p.container(t, "app"), "8080/tcp")
	at, _, _ := strings.Cut(r.Stdout, "\n")
	return "http://" + at + path
}

// TestCompose: an application that reaches its database and its cache by name, over Docker's resolver at 127.0.0.11,
// whose rules stand in the same namespace as ours.
func TestCompose(t *testing.T) {
	importStack(t)
	sameStories(t, func(t *testing.T, runtime string) string {
		p := &project{name: strings.ReplaceAll(box.ID(), "-", ""), dir: folder(t, "compose"), env: []string{"DOCKER_HOST=" + engine.Host(), "STACK_RUNTIME=" + runtime}}
		t.Cleanup(func() { p.must(t, "down", "--volumes", "--timeout", "2") })
		var s story
		if r := p.do(t, "up", "--detach"); r.Exit != 0 {
			t.Fatalf("%v\n%s", r, p.do(t, "logs", "--no-color").Stdout)
		}
		s.tell("runtime as asked", inspect(t, p.container(t, "app"), "{{.HostConfig.Runtime}}") == runtime)
		eventually(t, "the application answers", func() bool { return get(t, p.url(t, "/resolver")) != "" })
		s.tell("resolver", get(t, p.url(t, "/resolver")))
		s.tell("names", get(t, p.url(t, "/names")))
		s.tell("first", get(t, p.url(t, "/hit")))
		s.tell("second", get(t, p.url(t, "/hit")))

		s.tell("cache is read-only", p.do(t, "exec", "-T", "cache", "touch", "/etc/new").Exit)
		s.tell("cache's backlog", p.must(t, "exec", "-T", "cache", "cat", "/proc/sys/net/core/somaxconn"))
		s.tell("psql in the database", p.must(t, "exec", "-T", "--user", "postgres", "db", "psql", "-h", "/tmp", "-Atc", "select count(*) from visits"))
		s.tell("one-off", p.must(t, "run", "--rm", "-T", "--no-deps", "app", "python3", "-c", "import redis; print(redis.Redis('cache').get('hits'))"))

		p.must(t, "restart", "--timeout", "10", "db")
		eventually(t, "the database is healthy again", func() bool {
			return inspect(t, p.container(t, "db"), "{{.State.Health.Status}}") == "healthy"
		})
		s.tell("after a restart of the database", get(t, p.url(t, "/hit")))

		get(t, p.url(t, "/crash"))
		eventually(t, "the application is back", func() bool {
			return inspect(t, p.container(t, "app"), "{{.RestartCount}} {{.State.Running}}") == "1 true" && get(t, p.url(t, "/resolver")) != ""
		})
		s.tell("after a crash of the application", get(t, p.url(t, "/hit")))

		p.must(t, "up", "--detach", "--scale", "app=2")
		eventually(t, "two applications by one name", func() bool {
			return strings.Contains(get(t, p.url(t, "/names")), `"web": 2`)
		})
		p.must(t, "stop", "--timeout", "10")
		for _, service := range []string{"db", "cache"} {
			s.tell(service+" ended with", inspect(t, p.container(t, service), "{{.State.ExitCode}} {{.State.OOMKilled}}"))
		}
		return s.String()
	},
		`names: {"db": 1, "cache": 1, "web": 1, "elsewhere": 1`, `nameserver 127.0.0.11`, `second: {"rows": 2, "hits": 2}`,
		`after a restart of the database: {"rows": 3, "hits": 3}`, `after a crash of the application: {"rows": 4, "hits": 4}`, "db ended with: 0 false",
	)
}
