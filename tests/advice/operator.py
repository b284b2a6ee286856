"""Somebody who has only what the product prints: reads a next step, and does what it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import zkrq
from tests.harness import command
from tests.integration.shell import Shell
from zkrq import local

RULES = "client/examining/rules.py"
"""The file that has what `zkrq doctor` advises."""

COMMAND = re.compile(r"`((?:zkrq|redis-cli|CONFIG|ACL|FUNCTION|SCRIPT) ?[^`]*)`")


class Printed(NamedTuple):
    """What a command has printed."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Operator:
    """Runs commands as they are printed, with what stands for something in place of a placeholder."""

    def __init__(self, servers: local.Servers, prepared_zkrq: list[str]) -> None:
        self.servers = servers
        self.shell = Shell(servers, prepared_zkrq)
        self.environment = self.shell.environment
        self.namespace = self.environment["ZKRQ_NAMESPACE"]

    def move_to(self, name: str) -> None:
        """Go on in another namespace, which does not exist yet."""
        self.namespace = self.environment["ZKRQ_NAMESPACE"] = f"{self.namespace}-{name}"

    @property
    def urls(self) -> dict[str, str]:
        """What ``ZKRQ_REDIS`` names."""
        return dict(each.split("=", 1) for each in self.environment["ZKRQ_REDIS"].split(","))

    def client(self, **options: Any) -> zkrq.Cluster:
        """A program with the same environment."""
        return zkrq.connect(self.urls, self.environment["ZKRQ_ZOOKEEPER"], namespace=self.namespace, **options)

    def name_servers(self, urls: Mapping[str, str]) -> None:
        """Write these servers into ``ZKRQ_REDIS``."""
        self.environment["ZKRQ_REDIS"] = ",".join(f"{name}={url}" for name, url in urls.items())

    async def found(self, **options: Any) -> None:
        """Found the namespace, with the servers of ``ZKRQ_REDIS``."""
        await zkrq.found(self.urls, self.environment["ZKRQ_ZOOKEEPER"], namespace=self.namespace, **options)

    async def run(self, line: str, **placeholders: str) -> Printed:
        """Run a line that begins with ``zkrq``; each word that is a placeholder is replaced."""
        words = [part for word in shlex.split(line) for part in placeholders.get(word, word).split(" ")]
        assert words.pop(0) == "zkrq"
        return Printed(*await self.shell.run(*words))

    async def do(self, line: str, **placeholders: str) -> str:
        """Run a line that has to succeed; return what it prints."""
        printed = await self.run(line, **placeholders)
        assert printed.code == 0, (line, printed)
        return printed.out

    async def doctor(self) -> dict[str, str]:
        """The findings of `zkrq doctor`: their texts by kind."""
        _, out, _ = await self.shell.run("doctor", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        return {each["kind"]: each["text"] for each in lines if "text" in each}

    async def follow(self, text: str, server: local.LocalRedis | None = None, /, **placeholders: str) -> list[str]:
        """Do what the commands of a next step say, one after the other; return what each has printed.

        ``server``: the one that commands of Redis are for.
        """
        lines = COMMAND.findall(text)
        assert lines, f"no command in {text!r}"
        printed: list[str] = []
        for line in lines:
            if line.startswith("zkrq "):
                printed.append(await self.do(line, **placeholders))
            else:
                assert server
                words: list[str] = line.removeprefix("redis-cli ").split()
                reply = await command(server, *words)
                assert not reply.startswith(b"-"), (line, reply)
                printed.append(reply.decode())
        return printed


async def texts(operator: Operator) -> list[str]:
    """All findings of `zkrq doctor`, a line each."""
    return (await operator.run("zkrq doctor")).out.splitlines()
