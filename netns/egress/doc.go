// Package egress says which names and addresses a task may connect to: the grammar of network rules, the classes of
// addresses that are refused whoever names them, and the decision, with its reason.
//
// Data in: rules as text, and names, addresses and ports that a task asked for. Data out: a [Decision]. The package
// makes no system call, resolves nothing and keeps no state; package gateway does that. It is linked into programs
// whose start counts, to validate profiles, so it has no maps, regular expressions or parsers at package level.
//
// # Rules
//
//	[METHOD[,METHOD...] ] [SCHEME://] TARGET [:PORTS] [/PATH-PREFIX]
//
//	pypi.org                    TLS on port 443, for that name
//	*.pypi.org:443              any name below it, not pypi.org itself
//	*:443                       any name
//	example.com:80,443,8000-8099
//	http://example.com/pool/    plain HTTP, below a path
//	GET,HEAD http://example.com
//	GET https://example.com/api the same inside of TLS, which is inspected for that (package gateway/inspect)
//	ssh://github.com            SSH, port 22
//	ssh://git.example SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU   the same, and one of these host keys
//	tcp://db.example.com:5432   any protocol: nothing but the destination is checked
//	10.0.0.0/8:443              connections to addresses, without a name
//	[fd00:1::/64]:443
//
// A rule without a scheme lets TLS and plain HTTP pass, and checks the name inside (SNI, Host) against the destination.
// An empty list of rules allows nothing (CVE-2025-66479 was a runtime in which it allowed everything). A rule that denies
// wins over every rule that allows.
//
// # Host names
//
// One strict grammar ([ParseHost]) for rules, DNS questions, SNI and HTTP hosts: letters, digits, hyphens and
// underscores, in labels of 1 to 63 bytes. A last label that is a number in any notation is refused, so "127.1",
// "0x7f.1" and "2130706433" are never names that a resolver further down reads as addresses. Names in other scripts are
// written as xn-- labels.
//
// # Addresses
//
// Whatever a name resolves to is judged by [Policy.Address] at every connection: only public addresses pass, and those
// that the administrator named. A metadata service has to be named as a single address; no range opens it.
//
// Minimum kernel: none.
//
// Rejected: patterns in the middle of names (a typing error opens a whole domain), "*.example.com" that covers
// example.com (browsers, certificates and people disagree on it), deny rules that an allow rule further down lifts (the
// order of a merged list is nobody's intention).
package egress
