// Package network tests the gateway with real clients against a world of its own: a network namespace with name servers,
// web servers and addresses that stand for the Internet, a private network and a cloud's metadata service.
//
// It has no code but tests, and refuses to touch the machine's network: everything happens in the harness's box and in
// namespaces below it. Rejected: the real Internet (a test that fails when somebody else's server does, and that can't
// put a server at a metadata address).
package network
