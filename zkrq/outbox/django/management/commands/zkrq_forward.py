"""``manage.py zkrq_forward``: forward the outbox until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from zkrq.client.connecting import connect
from zkrq.outbox.django import Forwarder

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Push what transactions have committed; any number of these may run."""

    help = "Forward the outbox into zkrq's queues, with the servers that the environment names (ZKRQ_REDIS ...)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default="default", help="the database's alias")
        parser.add_argument("--once", action="store_true", help="end when the outbox is empty")

    def handle(self, *args: Any, database: str, once: bool, **options: Any) -> None:
        asyncio.run(self._forward(database, once=once))

    async def _forward(self, database: str, *, once: bool) -> None:
        async with connect() as cluster:
            if once:
                done = await Forwarder(cluster, using=database).forward()
                self.stdout.write(f"{done.pushed} pushed, {done.failed} failed, {done.left} left")
                return
            stopped = asyncio.Event()
            for number in signal.SIGINT, signal.SIGTERM:
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            async with Forwarder(cluster, using=database):
                await stopped.wait()
