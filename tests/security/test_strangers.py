"""Strangers without a token attack `zkrq serve` in twelve ways at once, and a client with a token is answered.

Its figures are printed; those of one run stand in docs/security.md.  Nothing here asserts how long a call took.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import anyio
import httpx
import pytest

from tests.harness import HANG, new_namespace, over_zookeeper
from tests.integration.serve_process import ROOT, output, process, url_of
from tests.security.strangers import ATTACKS
from zkrq import local
from zkrq.serve.lines import LINES_MAX

pytestmark = pytest.mark.anyio

TOKEN = "a-long-random-text-that-nobody-guesses"


async def call(url: str, number: int, kept: httpx.AsyncClient) -> float:
    """Push an item, or claim and ack one, over a connection that is kept or over a new one; the seconds it took."""
    began = time.perf_counter()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    client = kept if number % 2 else httpx.AsyncClient(timeout=HANG, trust_env=False, verify=False)
    body = {"item": number} if number % 4 < 2 else {}
    path = "push" if body else "claim"
    reply = await client.post(f"{url}/v1/queues/orders/{path}", json=body, headers=headers)
    took = time.perf_counter() - began
    assert reply.status_code == 200, reply.text
    if client is not kept:
        await client.aclose()
    return took


async def calls(url: str, count: int) -> Sequence[float]:
    async with httpx.AsyncClient(timeout=HANG, trust_env=False, verify=False) as kept:
        return sorted([await call(url, number, kept) for number in range(count)])


def show(what: str, took: Sequence[float]) -> None:
    slowest = f"{took[int(0.99 * len(took))] * 1000:.0f} | {took[-1] * 1000:.0f}"
    print(f"| {what} | {len(took)} | {median(took) * 1000:.0f} | {slowest} |")


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.chaos)])
async def test_a_client_is_answered_while_strangers_attack(shared_servers: local.Servers, count: int) -> None:
    namespace = new_namespace()
    async with over_zookeeper(shared_servers, namespace):
        pass  # it is founded
    async with process(shared_servers, namespace, ZKRQ_SERVE_TOKEN=TOKEN) as server:
        url = await url_of(server)
        await calls(url, 8)
        before = await calls(url, count)
        words = [sys.executable, "-m", "tests.security.strangers", url.rpartition(":")[2]]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        async with await anyio.open_process(words, env=variables, cwd=ROOT, stdin=subprocess.PIPE) as strangers:
            try:
                async with httpx.AsyncClient(timeout=HANG, trust_env=False, verify=False) as client:
                    await calls(url, 8)  # until most of them are there
                    meanwhile = await calls(url, count)
                    assert (await client.get(f"{url}/livez")).text == "alive\n"
                assert strangers.returncode is None
            finally:
                strangers.kill()
        after = await calls(url, count)
        server.terminate()
        written = re.sub(r"(?m)^.* INFO .*\n", "", await output(server))
    print("\n| | calls | median, ms | 99 % within, ms | slowest, ms |\n| --- | ---: | ---: | ---: | ---: |")
    for what, took in (("before", before), (f"{len(ATTACKS)} attacks at once", meanwhile), ("after", after)):
        show(what, took)
    assert len(written.splitlines()) <= 5 * LINES_MAX, written[:5000]
