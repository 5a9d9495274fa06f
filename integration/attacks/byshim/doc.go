// Command byshim is the runtime's command line over its containerd shim: the attacks are the same, the program that has
// to stand up to them is another.
//
//	byshim --root DIR [--profile NAME] create|start|run|exec|kill|delete|list ...
//
// AGENTSAFE_TEST_SHIM names the shim. What the shim's API has no word for (preserved descriptors, console sockets) is an
// error with status 3.
package main
