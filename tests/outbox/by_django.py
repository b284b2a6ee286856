"""A program with Django: its settings are those of the whole process, so the test starts it as one of its own.

    python -m tests.outbox.by_django DATABASE.json

Prints a line of JSON for what it did.  The servers are in the environment.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction

import zkrq


def count() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM zkrq_outbox")
        return cursor.fetchall()[0][0]


class Some:
    """A claim as an inbox sees it."""

    queue, id, token = "jobs", "x", (1, 7)


def inbox() -> list[bool]:
    from zkrq.outbox.django import Inbox

    results: list[bool] = []
    for _ in range(2):
        with transaction.atomic():
            results += [Inbox("mailer").first(Some()), Inbox("mailer").fence(Some())]
    return results


async def forward() -> tuple[int, int, int]:
    from zkrq.outbox.django import Forwarder

    async with zkrq.connect() as cluster:
        return await Forwarder(cluster).forward()


def main() -> None:
    settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, INSTALLED_APPS=["zkrq.outbox.django"])
    django.setup()
    from zkrq.outbox.django import push

    said = io.StringIO()
    call_command("migrate", verbosity=0)
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    with transaction.atomic():
        push("jobs", {"order": 1}, headers={"a": "100%"})
    try:
        with transaction.atomic():
            push("jobs", {"order": 2})
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    done: dict[str, object] = {"rows": count(), "forwarded": asyncio.run(forward()), "then": count(), "inbox": inbox()}
    with transaction.atomic():
        push("jobs", {"order": 3})
    call_command("zkrq_forward", once=True, stdout=said)
    done["said"] = said.getvalue()
    call_command("migrate", "zkrq_outbox", "zero", verbosity=0)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
