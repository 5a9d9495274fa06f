// Package cri runs a current containerd as Kubernetes does, through CRI, with our shim.
//
// The engine is containerd 2.4 from integration/engines/containerd, with CNI from Debian and a registry on the loopback
// device of the box, to which every image name is mapped. Handlers: runc, agentsafe, and agentsafe-none, which is the
// same shim with the profile none. crictl does what a kubelet does; critest, the conformance suite of CRI, takes minutes
// and runs with AGENTSAFE_TEST_LONG=1 only: what runc passes, agentsafe-none has to pass, and what agentsafe refuses
// has to stand in docs/CRI.md.
//
// It has no code but tests and the program in the images. Needs Debian's runc and containernetworking-plugins, Linux
// 5.15 and root; the engines and tools are built once, which takes the network and minutes. Rejected: a kubelet, which
// adds a control plane and no call that crictl lacks.
package cri
