package critools

import (
	// What critest, a test binary without a package of its own to import, needs of its module.
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
