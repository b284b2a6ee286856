"""A nack or release that was carried out without an answer, and whose item another consumer has by now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import take
from zkrq.consuming.claims import lease_of
from zkrq.consuming.lease import Verb

pytestmark = pytest.mark.anyio

Meanwhile = Callable[[], Awaitable[object]]


def _repeat(claim: zkrq.Claim[Any], meanwhile: Meanwhile, *, first: bool = True) -> None:
    """Have the next settlement repeated after this, as when the view changes in the middle.

    ``first``: its first try is carried out; otherwise that has reached no server that is left.
    """
    leases: Any = lease_of(claim).issuer
    replicas = leases._replicas
    decide = replicas.decide

    async def decide_twice(call: Any, **options: Any) -> Any:
        replicas.decide = decide
        if first:
            await decide(call, **options)
        await meanwhile()
        return (await decide(call, **options))._replace(again=True)

    replicas.decide = decide_twice


async def _settle(claim: zkrq.Claim[Any], verb: str) -> None:
    if verb == "snooze":
        await claim.release(delay=0.001)
    else:
        await (claim.nack(delay=0) if verb == Verb.NACK else claim.release())


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RELEASE, "snooze"])
async def test_it_returns_when_another_consumer_has_the_item(queue: zkrq.Queue[Any], verb: Verb) -> None:
    await queue.push("x")
    claim = await take(queue)
    others = list[zkrq.Claim[Any]]()

    async def claim_again() -> None:
        others.append(await take(queue))

    _repeat(claim, claim_again)
    await _settle(claim, verb)
    (other,) = others
    assert not claim.lost
    assert other.failures == (verb == Verb.NACK)
    assert other.attempts == (2 if verb == Verb.NACK else 1)
    await other.ack()


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RELEASE])
async def test_it_may_have_been_carried_out_when_the_counts_do_not_tell(queue: zkrq.Queue[Any], verb: Verb) -> None:
    """Another consumer has buried the item since, which drops what the counts would say."""
    await queue.push("x")
    claim = await take(queue)

    async def bury() -> None:
        await (await take(queue)).bury("no good")

    _repeat(claim, bury)
    with pytest.raises(zkrq.ClaimLost, match=f"its {verb} may have been carried out") as raised:
        await _settle(claim, verb)
    assert raised.value.in_doubt
    assert "may have been carried out" in claim.lost.reason


@pytest.mark.parametrize("verb", [Verb.NACK, Verb.RELEASE])
async def test_it_is_in_doubt_when_the_claim_had_expired_before(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime, verb: Verb
) -> None:
    """It was not carried out, and is not told as if it had been."""
    queue = cluster.queue(name, claim_timeout=1)
    await queue.push("x")
    claim = await take(queue)
    lease_of(claim).stop_extending()
    others = list[zkrq.Claim[Any]]()

    async def expire() -> None:
        await pass_time(1.5)
        others.append(await take(queue))

    _repeat(claim, expire, first=False)
    with pytest.raises(zkrq.ClaimLost) as raised:
        await _settle(claim, verb)
    assert raised.value.in_doubt
    assert (others[0].failures, others[0].attempts) == (0, 2)
    await others[0].ack()


async def test_one_that_was_sent_once_and_refused_was_not_carried_out(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, claim_timeout=1)
    await queue.push("x")
    claim = await take(queue)
    lease_of(claim).stop_extending()
    await pass_time(1.5)
    other = await take(queue)
    with pytest.raises(zkrq.ClaimLost) as raised:
        await claim.nack()
    assert not raised.value.in_doubt
    await other.ack()
