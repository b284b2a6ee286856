"""Push from a web application without an event loop, as Django and Flask have it: many threads, one cluster.

``zkrq.sync`` has the calls of zkrq without ``await``. The cluster and its queues are made when the module is imported,
which connects to nothing; the first view that pushes opens the connection, one for all threads of the process, and it
is closed when the process ends. A server that forks (uWSGI, gunicorn) needs nothing more: each process opens its own.

Run it with ``python examples/signup.py``. For servers of your own replace ``zkrq.sync.embedded()`` by
``zkrq.sync.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``, and let
a ``zkrq.Worker`` send the e-mails: its handlers may be plain functions, too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from typing import TypedDict
from urllib.parse import parse_qs, quote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

import zkrq.sync

PEOPLE = 25
MAX_ADDRESS = 100  # characters
REQUEST_TIMEOUT = 20.0


class Email(TypedDict):
    to: str


cluster = zkrq.sync.embedded()
emails: zkrq.sync.Queue[Email] = cluster.queue("emails")


def sign_up(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer ``POST /sign-up?address=...``: the view, in a thread of the web server."""
    address = parse_qs(environ.get("QUERY_STRING", "")).get("address", [""])[0].strip()
    if not (address.isascii() and address.isprintable() and 0 < len(address) <= MAX_ADDRESS):
        start_response("400 Bad Request", [])
        return [b"which address?\n"]
    try:
        # In Django, after the transaction: transaction.on_commit(lambda: emails.push(...)). Who signs up twice gets
        # one e-mail: while an item with this key is queued or claimed, nothing is pushed.
        receipt = emails.push({"to": address}, key=f"welcome:{address}")
    except (zkrq.Unavailable, zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown) as error:
        start_response("503 Service Unavailable", [("Retry-After", "5")])
        return [f"{error}\n".encode()]
    start_response("202 Accepted", [])
    return [b"again\n" if receipt.duplicate else b"welcome\n"]


def send_all() -> Counter[str]:
    """Send what is queued, in a plain loop; return how many e-mails each address got."""
    sent: Counter[str] = Counter()
    while claim := emails.pop_one(timeout=0):
        with claim:  # no exception: ack; an exception: retry later
            sent[claim.item["to"]] += 1
    return sent


class Server(ThreadingMixIn, WSGIServer):
    """A stand-in for gunicorn."""

    daemon_threads = True
    request_queue_size = 2 * PEOPLE


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None: ...


def request(port: int, address: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT)
    try:
        connection.request("POST", f"/sign-up?address={quote(address)}")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def main() -> None:
    addresses = [f"person-{number}@example.org" for number in range(PEOPLE)]
    with make_server("127.0.0.1", 0, sign_up, Server, Quiet) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        with ThreadPoolExecutor(10) as people:  # everybody clicks twice
            answers = Counter(people.map(partial(request, server.server_port), addresses * 2))
        server.shutdown()
        serving.join()
    for (status, text), count in sorted(answers.items()):
        print(f"{count} requests were answered: {status} {text.decode().strip()}")
    sent = send_all()
    twice = sum(count > 1 for count in sent.values())
    print(f"{len(sent)} e-mails sent, {twice} twice, {sum(emails.size())} left")


if __name__ == "__main__":
    main()
