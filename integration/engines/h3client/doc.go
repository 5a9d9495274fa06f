// Command h3client gets a URL as clients of HTTP/3 do: over QUIC, and over TCP when that fails. The integration tests build
// it in order to see what a task with such a client goes through. Its first line says how QUIC ended, and whether that took
// a wait; the rest is the answer.
//
//	h3client URL FILE-OF-AUTHORITIES
//
// As a server of HTTP/3 alone, on UDP port 443, it says which path was asked for:
//
//	h3client serve CERTIFICATE KEY
package main
