package main

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// TestAttack_SocketsAroundThePorts: kinds and protocols of sockets that reach TCP, or a driver of their own, by another name
// than the one that is refused: SMC opens its TCP connections in the kernel, where Landlock does not look (since Linux
// 6.11 by a protocol of AF_INET), and with protocol 0 the kind alone makes an SCTP or DCCP socket where these are loaded.
// The machine of the tests has none of them, so it is the filter that is asked.
func TestAttack_SocketsAroundThePorts(t *testing.T) {
	const ipprotoSMC, ipprotoMPTCP, ipprotoSCTP, ipprotoDCCP, sockDCCP, sockFlags = 256, 262, 132, 33, 6, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	var programs [][]unix.SockFilter
	for _, f := range filters(t, "docker", nil) {
		programs = append(programs, mustCompile(t, &f))
	}
	for _, tc := range []struct {
		name                   string
		family, kind, protocol uint64
		want                   string
	}{
		{"TCP", unix.AF_INET, unix.SOCK_STREAM | sockFlags, 0, "allow"},
		{"TCP by its number", unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, "allow"},
		{"UDP", unix.AF_INET, unix.SOCK_DGRAM | sockFlags, 0, "allow"},
		{"raw, which capabilities decide on", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, "allow"},
		{"unix seqpacket", unix.AF_UNIX, unix.SOCK_SEQPACKET, 0, "allow"},
		{"SMC", unix.AF_INET, unix.SOCK_STREAM, ipprotoSMC, "EPROTONOSUPPORT"},
		{"SMC, version 6", unix.AF_INET6, unix.SOCK_STREAM | sockFlags, ipprotoSMC, "EPROTONOSUPPORT"},
		{"SMC, high bits", unix.AF_INET, unix.SOCK_STREAM, ipprotoSMC | 1<<32, "EPROTONOSUPPORT"},
		{"MPTCP", unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP, "EPROTONOSUPPORT"},
		{"SCTP", unix.AF_INET, unix.SOCK_STREAM, ipprotoSCTP, "EPROTONOSUPPORT"},
		{"SCTP by its kind", unix.AF_INET, unix.SOCK_SEQPACKET, 0, "ESOCKTNOSUPPORT"},
		{"SCTP by its kind, version 6, with flags", unix.AF_INET6, unix.SOCK_SEQPACKET | sockFlags, 0, "ESOCKTNOSUPPORT"},
		{"DCCP by its kind", unix.AF_INET, sockDCCP | sockFlags, 0, "ESOCKTNOSUPPORT"},
		{"DCCP by both", unix.AF_INET, sockDCCP, ipprotoDCCP, "ESOCKTNOSUPPORT EPROTONOSUPPORT"},
		{"a kind that there is not", unix.AF_INET, 7, 0, "EPERM"},
	} {
		got := "allow"
		for _, p := range programs {
			c := call{nr: unix.SYS_SOCKET, arch: unix.AUDIT_ARCH_X86_64, args: [6]uint64{tc.family, tc.kind, tc.protocol}}
			if answer := answerText(evaluate(p, c)); answer != "allow" {
				got = answer
			}
		}
		if !slices.Contains(strings.Fields(tc.want), got) {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// TestAttack_SocketTurnedIntoAnother: where TCP ports are listed, a TCP socket does not become one of a driver that connects
// in the kernel (TCP_ULP "smc"). Other options of that number are other levels' business.
func TestAttack_SocketTurnedIntoAnother(t *testing.T) {
	const solTCP, tcpULP = unix.SOL_TCP, 31
	for _, tc := range []struct {
		name          string
		change        func(*profiles.Profile)
		level, option uint64
		want          string
	}{
		{"with ports to connect to", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }, solTCP, tcpULP, "EPERM"},
		{"with ports to listen on", func(p *profiles.Profile) { p.Network.ListenPorts = []profiles.PortRange{} }, solTCP, tcpULP, "EPERM"},
		{"high bits", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }, solTCP | 1<<32, tcpULP | 1<<40, "EPERM"},
		{"another option", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }, solTCP, unix.TCP_NODELAY, "allow"},
		{"another level", func(p *profiles.Profile) { p.Network.ConnectPorts = []profiles.PortRange{} }, unix.SOL_IPV6, tcpULP, "allow"},
		{"without ports", nil, solTCP, tcpULP, "allow"},
	} {
		got := "allow"
		for _, f := range filters(t, "docker", tc.change) {
			c := call{nr: unix.SYS_SETSOCKOPT, arch: unix.AUDIT_ARCH_X86_64, args: [6]uint64{3, tc.level, tc.option}}
			if answer := answerText(evaluate(mustCompile(t, &f), c)); answer != "allow" {
				got = answer
			}
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
