//go:build !amd64

package main

// archCalls has nothing to try: arm64 kernels refuse 32-bit calls from a 64-bit program.
func archCalls() []call { return nil }
