"""Counts its visitors in a database and in a cache, and says what it sees of its network."""
import json
import os
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2
import redis


def hit():
    with psycopg2.connect(dbname="postgres", connect_timeout=20) as db, db.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS visits (at timestamptz DEFAULT now())")
        cursor.execute("INSERT INTO visits DEFAULT VALUES")
        cursor.execute("SELECT count(*) FROM visits")
        rows = cursor.fetchone()[0]
    return {"rows": rows, "hits": redis.Redis(os.environ["CACHE"], socket_timeout=20).incr("hits")}


def names():
    out = {}
    for name in ("db", "cache", "web", "elsewhere", "localhost"):
        try:
            out[name] = len(socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM))
        except socket.gaierror as e:
            out[name] = e.args[0]
    return out


def resolver():
    lines = open("/etc/resolv.conf").read().split("\n")
    return sorted(l for l in lines if l.startswith(("nameserver", "search")))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash":
            os._exit(3)
        body = json.dumps({"/hit": hit, "/names": names, "/resolver": resolver}[self.path]()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        print("served", self.path)


ThreadingHTTPServer(("", 8080), Handler).serve_forever()
