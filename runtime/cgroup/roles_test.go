package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	roleEnv = "AGENTSAFE_CGROUP_TEST_ROLE"
	argEnv  = "AGENTSAFE_CGROUP_TEST_ARG"

	roleUnified  = "unified"  // run the tests on in a mount namespace where the host is pure cgroup v2
	roleHog      = "hog"      // take 64 MiB after a line on stdin
	roleRootless = "rootless" // plan a cgroup as nobody, print the error
)

// playRole returns false if the tests are to run on.
func playRole(role string) (code int, done bool) {
	switch role {
	case roleUnified:
		// TestUnifiedHost cloned this process into a mount namespace of its own.
		if err := unix.Mount("none", mountRoot, "cgroup2", 0, ""); err != nil {
			fmt.Fprintln(os.Stderr, "mount cgroup2:", err)
			return 1, true
		}
		return 0, false
	case roleHog:
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return 1, true
		}
		hog := make([]byte, 64<<20)
		for i := 0; i < len(hog); i += 4096 {
			hog[i] = 1
		}
		return 0, true
	case roleRootless:
		return createAsNobody(), true
	}
	return 2, true
}

func createAsNobody() int {
	host, err := ReadHost()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	host.AskWritable()
	in := Input{ID: "x", CgroupsPath: os.Getenv(argEnv), Rootless: true, Host: host}
	if cfg, err := Plan(in); cfg != nil || err != nil {
		fmt.Printf("without limits: %v, %v\n", cfg, err)
		return 1
	}
	limit := int64(64 << 20)
	in.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	_, err = Plan(in)
	fmt.Println(err)
	if !errors.Is(err, ErrUnsupported) {
		return 1
	}
	return 0
}
