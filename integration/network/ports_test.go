package network

import "testing"

// portAttempts prints what each attempt answers: one that is allowed, and every way to a port that is not.
const portAttempts = `cat >t.py <<'E'
import errno, socket
def attempt(what, do):
    try: do(); print(what, "done")
    except OSError as e: print(what, errno.errorcode.get(e.errno, e))
def tcp(protocol=0):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol); s.settimeout(20); return s
attempt("443", lambda: tcp().connect(("example.com", 443)))
attempt("8080", lambda: tcp().connect(("example.com", 8080)))
attempt("8080 by fast open", lambda: socket.socket().sendto(b"x", 0x20000000, ("example.com", 8080)))
attempt("8080 by sendmsg", lambda: socket.socket().sendmsg([b"x"], [], 0x20000000, ("example.com", 8080)))
attempt("8080 by MPTCP", lambda: tcp(262).connect(("example.com", 8080)))
attempt("turn into another", lambda: tcp().setsockopt(6, 31, b"nosuch"))
attempt("bind 8000", lambda: tcp().bind(("127.0.0.1", 8000)))
attempt("bind 8001", lambda: tcp().bind(("127.0.0.1", 8001)))
l = tcp()
attempt("bind 0", lambda: l.bind(("127.0.0.1", 0)))
l.listen()
attempt("own server", lambda: tcp().connect(l.getsockname()))
E
/usr/bin/python3 t.py`

// With the gateway, Landlock sees the port that the program names, before the connection is led to the gateway: the
// list holds beside the rules of the gateway, for loopback too.
func TestPorts(t *testing.T) {
	const network = "  mode: gateway\n  dialFrom: host\n  allow: [\"tcp://example.com:443,8080\"]\n"
	for _, c := range []struct{ name, lists, want string }{
		{
			"no lists", "",
			"443 done\n8080 done\n8080 by fast open done\n8080 by sendmsg done\n8080 by MPTCP EPROTONOSUPPORT\nturn into another ENOENT\nbind 8000 done\nbind 8001 done\nbind 0 done\nown server done\n",
		},
		{
			"both lists", "  connectPorts: [443]\n  listenPorts: [8001]\n",
			"443 done\n8080 EACCES\n8080 by fast open ENOTSUP\n8080 by sendmsg ENOTSUP\n8080 by MPTCP EPROTONOSUPPORT\nturn into another EPERM\nbind 8000 EACCES\nbind 8001 done\nbind 0 EACCES\nown server EACCES\n",
		},
		{
			"local servers", "  connectPorts: [443]\n  listenPorts: [0]\n",
			"443 done\n8080 EACCES\n8080 by fast open ENOTSUP\n8080 by sendmsg ENOTSUP\n8080 by MPTCP EPROTONOSUPPORT\nturn into another EPERM\nbind 8000 EACCES\nbind 8001 EACCES\nbind 0 done\nown server EACCES\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := run(t, network+c.lists, portAttempts); r.out.Stdout != c.want {
				t.Errorf("want\n%s\n%v", c.want, r)
			}
		})
	}
}
