package profiles

import (
	"slices"
	"strings"
	"testing"
)

func TestMatchHide(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		hides, below  bool
	}{
		{"**/.env", "/.env", true, true},
		{"**/.env", "/job/.env", true, true},
		{"**/.env", "/job/a/b/.env", true, true},
		{"**/.env", "/job/.envrc", false, true},
		{"**/.env", "/job", false, true},
		{"**/.env.*", "/job/.env.local", true, true},
		{"/home/*/.ssh", "/", false, true},
		{"/home/*/.ssh", "/home", false, true},
		{"/home/*/.ssh", "/home/a", false, true},
		{"/home/*/.ssh", "/home/a/.ssh", true, false},
		{"/home/*/.ssh", "/home/a/b/.ssh", false, false},
		{"/home/*/.ssh", "/usr", false, false},
		{"/job/**/secrets/*.pem", "/job/secrets/a.pem", true, true},
		{"/job/**/secrets/*.pem", "/job/x/y/secrets/a.pem", true, true},
		{"/job/**/secrets/*.pem", "/job/x/a.pem", false, true},
		{"/job/**/secrets/*.pem", "/other/secrets/a.pem", false, false},
	} {
		hides, below := MatchHide(c.pattern, c.path)
		if hides != c.hides || !hides && below != c.below {
			t.Errorf("%s on %s: %v, %v", c.pattern, c.path, hides, below)
		}
	}
}

func TestValidateHide(t *testing.T) {
	for _, good := range []string{"/root/.ssh", "~/.ssh", "$WORKSPACE/.git", "**/.env", "/home/*/.ssh", "~/**/*.pem", "/job/**/.env"} {
		if err := validateHide(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "/", "x", "*", "**", "**/*", "/job/**", "/job/*", "/a/../b*", "/a//b*", "/a/[", "/a/**x/b", "$TMP/*.x", "**/../x*", "/a*/", "/x?/**", "**/a/**/b/**/c"} {
		if err := validateHide(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestPlanHide(t *testing.T) {
	spec := loadSpec(t, "docker")
	spec.Process.Env = append(spec.Process.Env, "HOME=/root")
	p := strict()
	p.Filesystem.Hide = []string{"~/.ssh", "$WORKSPACE/x", "/opt/keys", "**/.env"}
	host := hostOf(spec)
	if _, err := PlanContainer(spec, p, host); err == nil || !strings.Contains(err.Error(), "no facts about") {
		t.Errorf("nobody looked for the pattern: %v", err)
	}
	host.HiddenKnown, host.Hidden = true, []string{"/job/.env", "/opt/keys"}
	plan, err := PlanContainer(spec, p, host)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/root/.ssh", "/opt/keys", "/job/.env"} {
		n := 0
		for _, m := range plan.Spec.Linux.MaskedPaths {
			if m == want {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is masked %d times", want, n)
		}
	}
	if slices.Contains(spec.Linux.MaskedPaths, "/opt/keys") {
		t.Error("the input changed")
	}
}

func FuzzMatchHide(f *testing.F) {
	f.Add("**/.env", "/a/.env")
	f.Add("/a/*/b", "/a/b/b")
	f.Fuzz(func(t *testing.T, pattern, p string) {
		if validateHide(pattern) != nil || len(pattern) > 100 || len(p) > 100 {
			return
		}
		hides, _ := MatchHide(pattern, p)
		if !hides {
			return
		}
		// Whatever is hidden can be reached: a walk from the top goes on at each directory above it.
		for i := 1; i < len(p); i++ {
			if p[i] != '/' {
				continue
			}
			if h, below := MatchHide(pattern, p[:i]); !h && !below {
				t.Errorf("%q hides %q, but a walk stops at %q", pattern, p, p[:i])
			}
		}
	})
}
