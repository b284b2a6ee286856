"""Send e-mails later, urgent ones first, and a recurring digest.

``delay=`` and ``at=`` say when an e-mail may first be sent; until then it waits on the servers, not in a process that
could die. Among due e-mails the higher ``priority`` goes first. ``cluster.every`` pushes a digest at every moment of
its schedule, once however many processes declare it, so all of them may run this same code.

Run it with ``python examples/delayed_emails.py``. For servers of your own replace ``zkrq.embedded()`` in ``main`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import zkrq

DIGESTS = 3
DIGEST_EVERY = 1.0
ROUNDING = 0.01  # seconds; moments are kept in milliseconds


class Email(TypedDict):
    to: str
    subject: str
    not_before: float


def email(to: str, subject: str, *, later: float = 0.0) -> Email:
    return {"to": to, "subject": subject, "not_before": time.time() + later}


def digest(moment: datetime) -> Email:
    """Make the digest from the moment alone, because every process that declares the schedule must make the same
    e-mail."""
    return {"to": "ops@example.org", "subject": f"digest of {moment:%H:%M:%S}", "not_before": moment.timestamp()}


class Mailer:
    """A stand-in for an SMTP server."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Email]] = []
        self.early = 0
        self.digests = asyncio.Semaphore(0)
        self._started = time.time()

    async def send(self, item: Email, claim: zkrq.Claim[Email]) -> None:
        now = time.time()
        self.early += now < item["not_before"] - ROUNDING
        # If this process dies between sending and ack, the e-mail is sent again. No queue can prevent that, but a
        # Message-ID made of the item's id, which stays the same, lets the receiver detect it.
        self.sent.append((f"<{claim.id}@example.org>", item))
        print(f"{now - self._started:5.2f} s  priority {claim.priority}  {item['to']:16} {item['subject']}")
        if item["subject"].startswith("digest"):
            self.digests.release()


async def main() -> None:
    async with zkrq.embedded() as cluster:
        emails: zkrq.Queue[Email] = cluster.queue("emails")
        mailer = Mailer()
        for name in ("ann", "bob", "eve"):
            await emails.push(email(f"{name}@example.org", "our news"))
        await emails.push(email("ann@example.org", "your new password"), priority=9)  # overtakes the news
        await emails.push(email("bob@example.org", "still in your basket", later=1.0), delay=1.0)
        # `at` needs a time zone: a moment without one means something else on each machine.
        moment = datetime.now(UTC) + timedelta(seconds=1.5)
        await emails.push(email("eve@example.org", "your appointment", later=1.5), at=moment)

        # One at a time, only to show the order; a real worker has more slots.
        async with zkrq.Worker(concurrency=1).add(emails, mailer.send):
            # The last moment in the past, by some minutes at most, is pushed late: the first digest comes immediately.
            async with cluster.every(DIGEST_EVERY, emails, digest, name="digest"):
                for _ in range(DIGESTS):
                    await mailer.digests.acquire()
            while any(await emails.size()):  # noqa: ASYNC110 - no event reports an empty queue
                await asyncio.sleep(0.05)

    subjects = [item["subject"] for _, item in mailer.sent]
    digests = [subject for subject in subjects if subject.startswith("digest")]
    others = len(subjects) - len(digests)
    twice = len(subjects) - len({id for id, _ in mailer.sent}) + len(digests) - len(set(digests))
    print(f"first: {subjects[0]}")
    print(f"{others} e-mails, {len(digests)} digests sent, {twice} twice, {mailer.early} too early")


if __name__ == "__main__":
    asyncio.run(main())
