"""Tries one thing for each line of standard input, {"kind": ..., ...}, and prints what came of it as JSON lines."""
import json, socket, ssl, struct, sys, time

socket.setdefaulttimeout(8)


def lookup(a):
    return sorted({x[4][0] for x in socket.getaddrinfo(a["name"], 80, proto=socket.IPPROTO_TCP)})


def tcp(a):
    c = socket.create_connection((a["host"], a["port"]))
    if "send" in a:
        c.sendall(a["send"].encode("latin-1"))
    data = b""
    while len(data) < 65536:
        try:
            part = c.recv(4096)
        except socket.timeout:
            return "timeout after " + repr(data)
        if not part:
            break
        data += part
    return data.decode("latin-1")


def tls(a):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    c = context.wrap_socket(socket.create_connection((a["host"], a.get("port", 443))), server_hostname=a.get("sni"))
    c.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return c.recv(4096).decode("latin-1")


def slowly(a):
    c = socket.create_connection((a["host"], a["port"]))
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for b in a["send"].encode("latin-1"):
        c.sendall(bytes([b]))
        time.sleep(0.001)
    return c.recv(4096).decode("latin-1")


def udp(a):
    family = socket.AF_INET6 if ":" in a["host"] else socket.AF_INET
    u = socket.socket(family, socket.SOCK_DGRAM)
    u.connect((a["host"], a["port"]))
    u.send(b"x" * 40)
    return repr(u.recv(4096))


def question(name, kind):
    q = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0)
    for label in name.split("."):
        q += bytes([len(label)]) + label.encode("latin-1")
    return q + b"\0" + struct.pack("!HH", kind, 1)


def dns(a):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.sendto(question(a["name"], a.get("type", 1)), (a.get("server", "9.9.9.9"), 53))
    answer = u.recv(4096)
    return "rcode %d answers %d" % (answer[3] & 15, struct.unpack("!H", answer[6:8])[0])


def bind(a):
    s = socket.socket()
    s.bind(("127.0.0.1", a["port"]))
    return "bound"


kinds = {f.__name__: f for f in (lookup, tcp, tls, slowly, udp, dns, bind)}
for line in sys.stdin:
    a = json.loads(line)
    began = time.time()
    try:
        result = kinds[a["kind"]](a)
    except OSError as e:
        result = "error %s: %s" % (type(e).__name__, e)
    print(json.dumps({"result": result, "seconds": time.time() - began}), flush=True)
