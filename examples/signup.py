"""Push from a web application without an event loop, as Flask and Django have it: many threads, one cluster.

``zkrq.sync`` has the calls of zkrq without ``await``. The cluster and its queues are made when the module is imported,
which connects to nothing; the first view that pushes opens the connection, one for all threads of the process, and it
is closed when the process ends. A server that forks (uWSGI, gunicorn) needs nothing more: each process opens its own.

Run it with ``python examples/signup.py``. For servers of your own replace ``zkrq.sync.embedded()`` by
``zkrq.sync.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop")``, start the
application with ``gunicorn --workers 4 --threads 8 examples.signup:app``, and let a ``zkrq.Worker`` send the e-mails:
its handlers may be plain functions, too.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

from flask import Flask, Response, request

import zkrq.sync

PEOPLE = 25
MAX_ADDRESS = 100  # characters


class Email(TypedDict):
    to: str


cluster = zkrq.sync.embedded()
emails: zkrq.sync.Queue[Email] = cluster.queue("emails")
app = Flask(__name__)


@app.post("/sign-up")
def sign_up() -> Response:
    """Answer ``POST /sign-up`` with a form: the view, in a thread of the web server."""
    address = request.form.get("address", "").strip()
    if not (address.isascii() and address.isprintable() and 0 < len(address) <= MAX_ADDRESS):
        return Response("which address?\n", 400)
    try:
        # After the transaction, if there is one. Who signs up twice gets one e-mail: while an item with this key is
        # queued or claimed, nothing is pushed.
        receipt = emails.push({"to": address}, key=f"welcome:{address}")
    except (zkrq.Unavailable, zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown) as error:
        return Response(f"{error}\n", 503, {"Retry-After": "5"})
    return Response("again\n" if receipt.duplicate else "welcome\n", 202)


def send_all() -> Counter[str]:
    """Send what is queued, in a plain loop; return how many e-mails each address got."""
    sent: Counter[str] = Counter()
    while claim := emails.pop_one(timeout=0):
        with claim:  # no exception: ack; an exception: retry later
            sent[claim.item["to"]] += 1
    return sent


def click(address: str) -> tuple[int, str]:
    """Send a person's request."""
    answer = app.test_client().post("/sign-up", data={"address": address})
    return answer.status_code, answer.text.strip()


def main() -> None:
    addresses = [f"person-{number}@example.org" for number in range(PEOPLE)]
    with ThreadPoolExecutor(10) as people:  # everybody clicks twice
        answers = Counter(people.map(click, addresses * 2))
    for (status, text), count in sorted(answers.items()):
        print(f"{count} requests were answered: {status} {text}")
    sent = send_all()
    twice = sum(count > 1 for count in sent.values())
    print(f"{len(sent)} e-mails sent, {twice} twice, {sum(emails.size())} left")


if __name__ == "__main__":
    main()
