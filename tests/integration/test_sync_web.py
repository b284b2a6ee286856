"""A view that pushes through ``zkrq.sync``: in the threads of a web server, and in processes that it has forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.harness import HANG, new_namespace
from zkrq import local, sync

ROOT = Path(__file__).parents[2]
REQUESTS = 120
AT_ONCE = 12
WORKERS = 3

APPLICATION = """
import os
from urllib.parse import parse_qs

import zkrq.sync

cluster = zkrq.sync.connect()  # from the environment
emails = cluster.queue("emails")
if os.environ.get("OPENED"):
    emails.push({"to": "the one who started us"})  # so it is open when the server forks

def sign_up(address):
    emails.push({"to": address})
    return str(os.getpid())

def plain(environ, start_response):
    answer = sign_up(parse_qs(environ["QUERY_STRING"])["address"][0])
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [answer.encode()]

try:
    import flask
except ImportError:
    pass
else:
    view = flask.Flask("shop")

    @view.post("/sign-up")
    def post():
        return sign_up(flask.request.args["address"]), 202
"""

FORKING = """
import os, signal, socket, sys, threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import shop

class Quiet(WSGIRequestHandler):
    def log_message(self, *args): pass

server = make_server("127.0.0.1", int(sys.argv[1]), shop.plain, handler_class=Quiet)
server.socket.setblocking(False)  # several children wake for one connection; the others must not wait for the next one
children = []

def stop(*_):
    for child in children:
        os.kill(child, signal.SIGTERM)

signal.signal(signal.SIGTERM, stop)
for _ in range(3):
    child = os.fork()
    if child == 0:
        # An exception of the signal's handler would be taken for one of the request that is just being answered.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever()
        sys.exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def gunicorn(application: str, *options: str) -> list[str]:
    common = ["--bind", "127.0.0.1:{port}", "--graceful-timeout", "20", "--log-level", "warning"]
    return [sys.executable, "-m", "gunicorn", *common, *options, f"shop:{application}"]


PREFORK = ("--workers", str(WORKERS), "--preload")
SERVERS = {
    "forks": [sys.executable, "-W", "ignore:This process (pid=:DeprecationWarning", "-c", FORKING, "{port}"],
    "gunicorn, threads": gunicorn("plain", "--threads", "8"),
    "gunicorn, prefork": gunicorn("plain", *PREFORK),
    "gunicorn, flask, threads": gunicorn("view", "--threads", "8"),
    "gunicorn, flask, prefork": gunicorn("view", *PREFORK),
}


@contextmanager
def serving(
    kind: str, servers: local.Servers, namespace: str, directory: Path, **more: str
) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """A web server with the application, and its port."""
    (directory / "shop.py").write_text(APPLICATION)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(directory), str(ROOT))),
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
        **more,
    }
    command = [word.format(port=port) if "{port}" in word else word for word in SERVERS[kind]]
    process = subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield process, port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children, too: they have its pipe
        process.communicate()


def sign_up(port: int, number: int) -> str:
    """Retried until the server listens."""
    for _ in range(int(HANG * 10)):
        connection = HTTPConnection("127.0.0.1", port, timeout=HANG)
        try:
            connection.request("POST", f"/sign-up?address={number}")
            response = connection.getresponse()
            assert response.status == 202
            return response.read().decode()
        except ConnectionRefusedError:
            time.sleep(0.1)
        finally:
            connection.close()
    pytest.fail("the server does not listen")


@pytest.mark.parametrize(
    ("kind", "opened"),
    [
        pytest.param(kind, opened, marks=() if short else pytest.mark.chaos)
        for kind, opened, short in (
            ("forks", False, False),
            ("forks", True, True),
            ("gunicorn, threads", False, False),
            ("gunicorn, prefork", False, False),
            ("gunicorn, prefork", True, False),
            ("gunicorn, flask, threads", False, True),
            ("gunicorn, flask, prefork", False, True),
            ("gunicorn, flask, prefork", True, True),
        )
    ],
)
def test_every_request_that_was_answered_has_pushed(
    kind: str, opened: bool, servers: local.Servers, tmp_path: Path
) -> None:
    for needed in ("gunicorn", "flask"):
        if needed in kind and not find_spec(needed):
            pytest.skip(f"not installed: {needed}")
    namespace = new_namespace()
    settings: dict[str, Any] = {"namespace": namespace, "found": True}
    with sync.connect(servers.redis_urls, servers.zookeeper_hosts, **settings) as cluster:
        more = {"OPENED": "1"} if opened else dict[str, str]()
        with serving(kind, servers, namespace, tmp_path, **more) as (process, port):
            with ThreadPoolExecutor(AT_ONCE) as people:
                processes = Counter(people.map(partial(sign_up, port), range(REQUESTS)))
            process.send_signal(signal.SIGTERM)
            _, complaints = process.communicate(timeout=HANG)
        assert (process.returncode, complaints.decode()) == (0, "")
        emails: sync.Queue[Any] = cluster.queue("emails")
        pushed: list[str] = [item.item["to"] for item in emails.scan() if item.item]
        assert Counter(pushed) == Counter([*map(str, range(REQUESTS)), *["the one who started us"] * opened])
        assert (len(processes) > 1) == ("thread" not in kind), processes
