package profiles

import (
	"fmt"
	"os"
	"testing"
)

// roleVariable makes the test binary play a part in a process of its own.
const roleVariable = "AGENTSAFE_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "landlock" {
		if err := playLandlock(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
