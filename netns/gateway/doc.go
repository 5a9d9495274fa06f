// Package gateway is the egress process of a container: it answers the container's DNS questions, takes every TCP
// connection that the rules of package netns hand to it, decides by name, and relays what is allowed.
//
// # How a connection passes
//
//	task                            gateway                                  outside
//	────                            ───────                                  ───────
//	A example.com? ───────────────▶ rule? ask the host's name servers ─────▶
//	198.18.4.7     ◀─────────────── an address that stands for the name ◀──  93.184.216.34
//	connect 198.18.4.7:443 ───────▶ rule for example.com:443?
//	                                address public? ───────────────────────▶ connect 93.184.216.34:443
//	ClientHello, SNI example.com ─▶ same name? ────────────────────────────▶ ClientHello
//	                      ◀──────── splice ───────────────────────────────▶
//
// Each name has an address of its own inside the container (names.go), so a connection's destination is a name and not
// something to be guessed from what names have resolved to. SNI, HTTP Host, the absolute form and CONNECT must agree
// with it. The address outside is the gateway's business alone: it is resolved, judged and dialled here, so that neither
// a second answer of a lying name server nor a redirect to another address escapes the judgement.
//
// # What was tried before it was built
//
// In a throwaway namespace on Linux 6.18: a `local default` route on loopback makes every address local; an nftables
// redirect in the output hook then gathers all ports in one listener, SO_ORIGINAL_DST tells the address that was dialled
// (both families), and UDP questions to any server come in at one socket whose answers carry the right source. Sockets
// that the host's side makes inside the namespace stay there when they are handed to a process outside of it. A match on
// the socket's cgroup2 (level 1, by id) exempts the gateway's own traffic where it has to leave through the container's
// network; the cgroup is made on a detached mount, so hosts with cgroup v1 have it, too. Without an address beside
// 127.0.0.1, getaddrinfo with AI_ADDRCONFIG refuses addresses: hence one more on loopback.
//
// # What a connection costs
//
// One loop (loop.go) takes a connection from accept to close: it accepts, asks where the connection was going, judges,
// connects outwards without waiting, reads the hello, and relays; no goroutine, channel or timer is made for it. What has
// to be waited for in other ways leaves the loop and comes back: a name that must be looked up, several addresses that
// are tried by turns, a proxy; and what ends elsewhere does not come back: plain HTTP (web.go), refusals, the gateway's
// own pages. There are two loops with one listening socket; the kernel wakes one that is idle (EPOLLEXCLUSIVE).
//
// The version before had a goroutine for each connection until it was relayed, and net.Conn, net.Dialer and the runtime's
// poller below that. For each connection these cost, apart from what they did: two starts of goroutines and some twenty
// system calls (of which the registration with the poller, the duplicates that took descriptors away from it again, and
// a wake-up of the relaying loop), and above all changes of thread: the scheduler wakes a thread for each goroutine that
// becomes ready while another processor is idle, a wait in the poller ends in a thread that then looks for a goroutine,
// and the loop's own epoll instance was waited for inside the poller's. On a virtual machine a wake-up of an idle
// processor takes tens of microseconds.
//
// The connection outwards is begun before the hello has come, so that both are waited for at once. That sends no packet
// to where none may go: the task has connected to the address that stands for one name, the rules let TLS to that name and
// port pass, and the address outside is the one that the gateway has resolved itself and judged. A hello for another name
// is refused before a byte of the task's leaves. It is not done for port 80 and for
// what is inspected, which are served in another way. What the hello adds to the first byte is then one more message
// through the same loop; the line of the log is written while the server answers.
//
// Of the processor time of a connection some three quarters are the kernel's: two more handshakes, four more pieces of data
// and their ends, and of that a tenth for the rules (connection tracking and redirection). Most of the rest is the Go
// runtime's monitor thread, allocation and the log.
//
// Where bytes are relayed: small pieces are read and written (two system calls; a pipe takes three, and a pipe),
// what comes in pieces of copyBytes and more goes through a pipe without being copied, as far as a loop lends one. An
// idle flow has none of that.
//
// # Whose a connection is
//
// The log names the command, by the control group that the kernel remembers of each socket (origin.go). The question costs
// a system call and some microseconds, once for a connection, and none where the line would not be written for its rate.
// Rejected: the process that has the socket open, by /proc (a walk through all descriptors of all processes, which a task
// makes as long as it likes, and wrong when the process has ended or handed the socket on); marks and classids (host
// settings of others); SO_PEERCRED (unix sockets only).
//
// # Refusals
//
// No rule, no way: an empty policy resolves nothing. A refusal comes at once and says why: NXDOMAIN with an extended
// error, a TLS alert, an HTTP 403 with one line of JSON, a reset for all else; every one is a line of the log, and
// http://gateway.agentsafe.internal/ lists the last ones to the task itself. UDP other than DNS never gets here: the
// rules refuse it, so QUIC clients fall back to TCP.
//
// Data in: a [wire.Config], sockets. Data out: relayed bytes, log lines ([Event]), answers on the control socket.
//
// The process holds secrets (credentials), so it runs under package confine, with a uid of its own.
//
// Minimum kernel: 5.15.
//
// Rejected: answering with real addresses (an address shared by an allowed and a refused name, as content networks do,
// has to be refused or guessed; SSH has no name inside); a proxy that clients must be told about (half of the tools
// ignore proxy variables); inspecting TLS by default (breaks pinning, and makes the gateway hold every secret: it does so
// where the administrator has given it an authority, and for the rules that need it alone, see inspected.go and package
// inspect); TPROXY (not in the output hook).
package gateway
