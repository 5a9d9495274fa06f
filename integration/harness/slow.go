package harness

import (
	"os"
	"strconv"
	"time"
)

// Stretch returns the limit d, longer on an emulated machine, which says in AGENTSAFE_TEST_SLOW by what factor.
func Stretch(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("AGENTSAFE_TEST_SLOW")); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}
