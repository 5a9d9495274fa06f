// Package critools pins cri-tools, whose critest and crictl the integration tests build, and crane, whose registry
// serves the images to the engine under test. It holds no code.
package critools
