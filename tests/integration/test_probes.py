"""Probes are answered from threads: of one process, and of several through their supervisor."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from http import HTTPStatus

import httpx
import pytest

import zkrq
import zkrq.testing
from zkrq.process import gathering, listening, probes
from zkrq.process.control import ANSWERS, Line, Supervised
from zkrq.process.gathering import Gathering
from zkrq.process.listening import Address, Answer, Listener, Respond, read_address
from zkrq.process.probes import Probes, no, yes

pytestmark = pytest.mark.anyio

ANY_PORT = Address("127.0.0.1", 0)


def get(listener: Listener, path: str) -> httpx.Response:
    return httpx.get(f"http://{listener.address}{path}", timeout=30)


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


async def answer(probes: Probes, path: str) -> tuple[HTTPStatus, str]:
    given = await asyncio.to_thread(probes.respond, path)
    assert given is not None
    return given.status, given.body.decode()


# -- one process -------------------------------------------------------------------------------------------------------


async def test_a_process_is_ready_from_the_opening_of_its_cluster_to_the_drain(
    cluster: zkrq.testing.TestCluster,
) -> None:
    probes = Probes()
    assert await answer(probes, "/livez") == (503, "the event loop does not run yet\n")
    probes.attach()
    assert await answer(probes, "/livez") == (200, "alive\n")
    assert await answer(probes, "/readyz") == (503, "the cluster is not open yet\n")
    probes.begin(cluster)
    assert await answer(probes, "/readyz") == (200, "ready\n")
    probes.end("draining")
    assert await answer(probes, "/readyz") == (503, "draining\n")
    assert await answer(probes, "/livez") == (200, "alive\n")


async def test_readiness_is_asked_not_remembered(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "READY_SECONDS", 0.5)
    answering = Probes()
    answering.attach()
    answering.begin(cluster)
    assert await answer(answering, "/readyz") == (200, "ready\n")
    for server in cluster.servers.names:
        cluster.servers.kill(server)
    assert cluster.health().ok
    assert await answer(answering, "/readyz") == (503, "the servers have not answered for 0.5 s\n")


async def test_a_blocked_loop_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LIVE_SECONDS", 0.1)
    answering = Probes()
    answering.attach()
    answers: list[Answer | None] = []
    asking = threading.Thread(target=lambda: answers.append(answering.respond("/livez")))
    asking.start()
    while asking.is_alive():  # nothing else runs on this loop meanwhile
        time.sleep(0.01)
    assert answers == [no("the event loop has not run for 0.1 s")]


def test_a_loop_that_has_ended_is_not_alive() -> None:
    answering = Probes()

    async def run() -> None:
        answering.attach()

    asyncio.run(run())
    assert answering.respond("/livez") == no("the event loop has ended")


# -- HTTP --------------------------------------------------------------------------------------------------------------


def test_addresses() -> None:
    assert read_address("9464") == read_address(":9464") == Address("127.0.0.1", 9464)
    assert read_address("0.0.0.0:80") == Address("0.0.0.0", 80)
    assert read_address("[::1]:80") == Address("::1", 80)
    assert str(read_address("[::1]:80")) == "[::1]:80"
    for wrong in ("", "http", "host:", "1:2:x", "65536", "-1"):
        with pytest.raises(zkrq.ConfigError, match="no address to listen on"):
            read_address(wrong)


def test_paths_are_answered_and_others_are_not_found() -> None:
    known = {"/livez": yes("alive"), "/readyz": no("not\nnow")}
    with Listener(ANY_PORT, known.get) as listener:
        assert (get(listener, "/livez?x=1").text, get(listener, "/livez").status_code) == ("alive\n", 200)
        assert (get(listener, "/readyz").text, get(listener, "/readyz").status_code) == ("not now\n", 503)
        assert get(listener, "/").status_code == 404
        head = httpx.head(f"http://{listener.address}/livez")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "6")
        assert httpx.post(f"http://{listener.address}/livez").status_code == 501
        with pytest.raises(zkrq.ConfigError, match="cannot listen"), Listener(read_address(str(listener.address)), yes):
            pass


def test_slow_strangers_do_not_keep_a_probe_from_being_answered() -> None:
    """Clients that send nothing, or a byte now and then, hold every thread; the next request takes the place of one."""
    strangers = listening.MAX_CONNECTIONS + 5
    with Listener(ANY_PORT, lambda _: yes("alive")) as listener, ExitStack() as stack:
        assert isinstance(listener.address, Address)
        slow = [stack.enter_context(socket.create_connection(listener.address)) for _ in range(strangers)]
        for number, each in enumerate(slow):
            each.sendall(b"GET /livez HTT"[:number])
        for _ in range(2 * listening.MAX_CONNECTIONS):
            assert get(listener, "/livez").is_success


def test_a_request_has_one_deadline_however_slowly_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "REQUEST_SECONDS", 0.5)
    with Listener(ANY_PORT, lambda _: yes("alive")) as listener:
        assert isinstance(listener.address, Address)
        with socket.create_connection(listener.address) as slow:
            slow.settimeout(0.1)
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    slow.sendall(b"x")
                    if not slow.recv(1):
                        return
                except TimeoutError:
                    continue
                except ConnectionError:
                    return
    raise AssertionError("a client that sends a byte now and then is waited for without end")


def test_requests_that_are_being_answered_keep_their_places() -> None:
    """Where every place is taken by a request that is being answered, a further one is refused."""
    asked, answer = threading.Semaphore(0), threading.Event()

    def respond(path: str) -> Answer:
        asked.release()
        answer.wait(30)
        return yes("alive")

    answers: list[int] = []
    with Listener(ANY_PORT, respond) as listener:
        clients = [
            threading.Thread(target=lambda: answers.append(get(listener, "/livez").status_code))
            for _ in range(listening.MAX_CONNECTIONS)
        ]
        for client in clients:
            client.start()
            assert asked.acquire(timeout=30)
        with pytest.raises(httpx.TransportError):
            get(listener, "/livez")
        answer.set()
        for client in clients:
            client.join()
    assert answers == [200] * listening.MAX_CONNECTIONS


async def test_readiness_that_waits_for_servers_leaves_room_for_liveness(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "READY_AT_ONCE", 1)
    answering = Probes()
    answering.attach()
    answering.begin(cluster)
    for server in cluster.servers.names:
        cluster.servers.kill(server)
    ready = [asyncio.create_task(answer(answering, "/readyz")) for _ in range(2)]
    assert await answer(answering, "/livez") == (200, "alive\n")
    texts = {(await task)[1] for task in ready}
    assert texts == {
        "1 requests are waiting for the servers already\n",
        f"the servers have not answered for {probes.READY_SECONDS:g} s\n",
    }


def until_answered(ask: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if ask():
                return
        except (httpx.TransportError, http.client.HTTPException):
            time.sleep(0.01)
    raise AssertionError("no answer")


# -- several processes -------------------------------------------------------------------------------------------------

METRICS = """\
# HELP jobs_total Jobs.
# TYPE jobs_total counter
jobs_total{queue="a"} %d
# HELP size_bytes Sizes.
# TYPE size_bytes histogram
size_bytes_bucket{le="+Inf"} %d
size_bytes_count %d
size_bytes_sum 0
"""


def started(stack: ExitStack, line: Line, respond: Respond | None) -> None:
    """What a supervisor and a process do when it starts: both are this one here."""
    ours, theirs = stack.enter_context(line.opened())
    if respond:
        process = Supervised(theirs, died=lambda: None)
        stack.enter_context(process.watching())
        stack.enter_context(process.answering(respond))
    else:
        theirs.send(ANSWERS.encode())
    assert line.hear(ours) == [ANSWERS]


def test_one_port_answers_for_all_processes() -> None:
    lines = {str(slot): Line() for slot in range(2)}

    def process(number: int) -> dict[str, Answer]:
        metrics = (METRICS % (number, number, number)).encode()
        ready = yes("ready") if number else no("draining")
        return {"/livez": yes("alive"), "/readyz": ready, "/metrics": Answer(HTTPStatus.OK, metrics, "text/plain")}

    gathering = Gathering({name: line.connect for name, line in lines.items()})
    assert gathering.respond("/livez") == yes("alive")  # those that do not run yet are the supervisor's business
    assert gathering.respond("/readyz") == no("process 0: it does not run; process 1: it does not run")
    assert gathering.respond("/metrics") == no("no process runs")
    with ExitStack() as stack:
        stack.enter_context(lines["0"].opened())  # it has been started, and answers nothing yet
        assert gathering.respond("/livez") == yes("alive")
        assert gathering.respond("/readyz") == no("process 0: it does not run; process 1: it does not run")
    with ExitStack() as stack:
        for name, line in lines.items():
            started(stack, line, process(int(name)).get)
        assert gathering.respond("/livez") == yes("alive")
        assert gathering.respond("/readyz") == no("process 0: draining")
        merged = gathering.respond("/metrics")
        assert merged is not None
        text = merged.body.decode()
        for process_name in "01":
            assert f'jobs_total{{process="{process_name}",queue="a"}} {process_name}.0' in text
            assert f'size_bytes_count{{process="{process_name}"}} {process_name}.0' in text
        assert text.count("# TYPE jobs_total counter") == 1
    with ExitStack() as stack:  # the next process of this place
        started(stack, lines["1"], process(1).get)
        assert gathering.respond("/readyz") == no("process 0: it does not run")


def test_a_process_that_does_not_answer_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "PATIENCE", 0.1)
    line = Line()
    with ExitStack() as stack:
        started(stack, line, None)
        given = Gathering({"0": line.connect}).respond("/livez")
    assert given == no("process 0: it does not answer: timed out")


def test_a_process_that_takes_no_more_probes_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end of the pair is full; the supervisor does not wait for it."""
    monkeypatch.setattr(gathering, "PATIENCE", 0.01)
    line = Line()
    with ExitStack() as stack:
        started(stack, line, None)
        ask = Gathering({"0": line.connect}).respond
        given = next(given for given in iter(lambda: ask("/livez"), None) if given and b"timed out" not in given.body)
    assert b"process 0: it does not answer: " in given.body
