package rootless

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// TestGateway: an ordinary user's task goes out by name and address as its profile says, through a gateway that the task
// can't see and that may do nothing but serve it; with subordinate ids, and with one id.
func TestGateway(t *testing.T) {
	box.StartOutside(t)
	for _, u := range []*user{rick, solo} {
		t.Run(u.name, func(t *testing.T) {
			dir := u.folder(t)
			profile := filepath.Join(dir, "out.yaml")
			write(t, u, profile, "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: out}\nextends: agent\n"+
				"network: {mode: gateway, allow: [\""+harness.Outside+"/32:"+harness.OutsidePort+"\"]}\nevidence: {mode: \"on\"}\n")
			id := box.ID()
			// A connection that is refused after it was made is reset.
			connect := func(host, port string) string {
				return fmt.Sprintf("timeout 30 bash -c 'exec 3<>/dev/tcp/%s/%s && head -n 1 <&3'", host, port)
			}
			r := u.do(t, "agentsafectl", "run", "-q", "--id", id, "--profile", profile, "--workspace", dir, "--", "sh", "-c", connect(harness.Outside, harness.OutsidePort)+"; "+
				connect(harness.Outside, "9001")+" || echo refused port; "+connect("203.0.113.1", "22")+" || echo refused host; getent hosts nowhere.example || echo refused name; "+
				"cat /proc/net/dev | grep -c :; cd /proc && echo [0-9]* | wc -w; "+
				"cat /dev/agentsafe/denials.jsonl")
			want := "hello\nrefused port\nrefused host\nrefused name\n1\n"
			if r.Exit != 0 || !strings.HasPrefix(r.Stdout, want) || !strings.Contains(r.Stdout, `"what":"nowhere.example"`) {
				t.Errorf("want %q, and what was refused:\n%v", want, r)
			}
			if log := u.must(t, "agentsafectl", "audit", "show", "--json", "--type", "egress", id); !strings.Contains(log, `"decision":"allow"`) || !strings.Contains(log, `"decision":"refuse"`) {
				t.Errorf("the evidence has no decisions: %s", log)
			}
		})
	}
}

// TestGateway_Identity looks at the gateway's process from the host: it has no capabilities in any namespace that matters,
// and is not the one in which the task could be root.
func TestGateway_Identity(t *testing.T) {
	box.StartOutside(t)
	for _, u := range []*user{rick, solo} {
		dir := u.folder(t)
		profile := filepath.Join(dir, "out.yaml")
		write(t, u, profile, "apiVersion: agentsafe.dev/v1\nkind: Profile\nmetadata: {name: out}\nextends: agent\nnetwork: {mode: gateway, allow: [\"example.com:443\"]}\n")
		id := box.ID()
		run := box.Start(t, u.cmd("agentsafectl", "run", "-q", "--id", id, "--profile", profile, "--workspace", dir, "--", "sh", "-c", "echo up; while [ -e out.yaml ]; do sleep 0.1; done"))
		for deadline := time.Now().Add(time.Minute); !strings.Contains(run.Output(), "up\n"); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				run.Stop(t)
				t.Fatal("the task does not start")
			}
		}
		pid := gatewayOf(t, id)
		// The gateway comes up beside the task, and confines itself before it reads anything.
		var status []byte
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var err error
			if status, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status"); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(status), "Seccomp:\t2") || time.Now().After(deadline) {
				break
			}
		}
		kuid := map[*user]string{rick: "265535", solo: "4343"}[u]
		for _, want := range []string{"Uid:\t" + kuid + "\t" + kuid, "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s: the gateway has no %q:\n%s", u.name, want, status)
			}
		}
		if r := u.do(t, "cat", "/proc/"+strconv.Itoa(pid)+"/environ"); u == solo && r.Exit == 0 {
			t.Errorf("the gateway is dumpable:\n%v", r)
		}
		if err := os.Remove(profile); err != nil {
			t.Fatal(err)
		}
		if r := run.Wait(t); r.Exit != 0 {
			t.Errorf("want 0:\n%v", r)
		}
	}
}

// gatewayOf finds the gateway's process of a container.
func gatewayOf(t *testing.T, id string) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err == nil && string(line) == "agentsafe-gateway\x00"+id+"\x00" {
			pid, err := strconv.Atoi(filepath.Base(d))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("there is no gateway of %s", id)
	return 0
}
