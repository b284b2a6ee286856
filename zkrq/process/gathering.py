"""Answer probes for all processes of a supervisor, on one port: each is asked on a connection of its own.

They are alive unless one does not run, ready if all are, and their metrics are told apart by the label ``process``.  A
process that is being started again does not count as dead, since the supervisor is taking care of it.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from zkrq.process.listening import Answer
from zkrq.process.probes import LIVE_SECONDS, has_metrics, no, yes

PATIENCE = LIVE_SECONDS + 1.0
"""Seconds within which a process must answer."""

MAX_ANSWER = 16 << 20
"""Bytes of one process's answer that are read."""

PROCESS = "process"


Connect: TypeAlias = Callable[[], socket.socket | None]
"""A function that returns a connection to a process, called in threads; None: the process does not run."""


class Gathering:
    """Ask these processes, by their names."""

    def __init__(self, processes: Mapping[str, Connect]) -> None:
        self._processes = processes
        self._pool = ThreadPoolExecutor(max_workers=len(processes), thread_name_prefix="zkrq probes")

    def respond(self, path: str) -> Answer | None:
        """Answer a request, in any thread."""
        match path:
            case "/livez" | "/readyz":
                return self._all_well(path)
            case "/metrics":
                return self._metrics()
            case _:
                return None

    def _ask_all(self, path: str) -> Mapping[str, Answer | None]:
        answers = self._pool.map(partial(_ask, request=path), self._processes.values())
        return dict(zip(self._processes, answers, strict=True))

    def _all_well(self, path: str) -> Answer:
        needed = path == "/readyz"
        failed = [
            f"process {name}: {answer.body.decode(errors='replace').strip() if answer else 'it does not run'}"
            for name, answer in self._ask_all(path).items()
            if (answer is None and needed) or (answer is not None and answer.status != HTTPStatus.OK)
        ]
        return no("; ".join(failed)) if failed else yes("ready" if needed else "alive")

    def _metrics(self) -> Answer:
        answers = {name: answer for name, answer in self._ask_all("/metrics").items() if answer}
        for answer in answers.values():
            if answer.status != HTTPStatus.OK:
                return answer
        if not answers or not has_metrics():
            return no("no process runs")
        from prometheus_client import CONTENT_TYPE_LATEST

        return Answer(HTTPStatus.OK, _merge({name: each.body for name, each in answers.items()}), CONTENT_TYPE_LATEST)


def _ask(connect: Connect, request: str) -> Answer | None:
    """Ask one process; return None if it does not run."""
    connection = _Connection("localhost", timeout=PATIENCE)
    try:
        sock = connect()
        if sock is None:
            return None
        with sock:
            sock.settimeout(PATIENCE)
            connection.sock = sock
            connection.request("GET", request)
            reply = connection.getresponse()
            return Answer(HTTPStatus(reply.status), reply.read(MAX_ANSWER), reply.headers["Content-Type"])
    except (OSError, http.client.HTTPException) as error:
        return no(f"it does not answer: {error}")


class _Connection(http.client.HTTPConnection):
    """A connection whose socket is given."""

    def connect(self) -> None:
        pass


def _merge(expositions: Mapping[str, bytes]) -> bytes:
    """Merge the metrics of several processes, each with its name as a label."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector

    merged: dict[str, Metric] = {}
    for process, exposition in expositions.items():
        for family in text_string_to_metric_families(exposition.decode()):
            into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += [each._replace(labels={PROCESS: process, **each.labels}) for each in family.samples]

    class Merged(Collector):
        def describe(self) -> Iterable[Metric]:
            return ()

        def collect(self) -> Iterable[Metric]:
            return merged.values()

    registry = CollectorRegistry()
    registry.register(Merged())
    return generate_latest(registry)
