"""The lease of an HTTP client on a claim: a table of what may follow what."""

from __future__ import annotations

import pytest

from zkrq.base.errors import ClaimLost
from zkrq.consuming.lease import Verb
from zkrq.serve.leases import ClientLease


def lease(state: str) -> ClientLease:
    """A lease that was given at 0 for 10 seconds, in one of its states."""
    made = ClientLease("item", 10.0)
    if state != "held":
        assert made.begin(Verb.ACK, 1.0)
    match state:
        case "settled":
            made.done(Verb.ACK)
        case "failed":
            made.failed()
        case "lost":
            made.end("its item was cancelled")
        case _:
            pass
    return made


@pytest.mark.parametrize("state", ["held", "failed"])
def test_it_can_be_settled_until_it_passes(state: str) -> None:
    assert lease(state).begin(Verb.NACK, 9.9)
    with pytest.raises(ClaimLost, match="its lease has passed"):
        lease(state).begin(Verb.NACK, 10.0)


def test_a_repeated_settling_is_answered_like_the_first() -> None:
    settled = lease("settled")
    assert not settled.begin(Verb.ACK, 99.0)
    with pytest.raises(ClaimLost, match="settled before: ack"):
        settled.begin(Verb.NACK, 2.0)
    with pytest.raises(ClaimLost, match="settled before: ack"):
        settled.extend(2.0, 10.0)


def test_what_is_lost_stays_lost() -> None:
    gone = lease("lost")
    gone.end("another reason")
    for verb in (Verb.ACK, Verb.RELEASE):
        with pytest.raises(ClaimLost, match="its item was cancelled"):
            gone.begin(verb, 2.0)
    assert gone.ended
    assert gone.settled is None


def test_it_does_not_pass_while_it_is_settled() -> None:
    """A settling that began in time may end late; if it fails after the lease, that has passed."""
    settling = lease("settling")
    assert settling.seconds_left(99.0) is None
    settling.check(99.0)
    settling.failed()
    assert settling.seconds_left(99.0) == 0
    with pytest.raises(ClaimLost, match="its lease has passed"):
        settling.begin(Verb.ACK, 99.0)


def test_it_is_extended_from_now() -> None:
    held = lease("held")
    held.extend(8.0, 5.0)
    assert held.seconds_left(9.0) == 4.0
    with pytest.raises(ClaimLost, match="its lease has passed"):
        held.extend(13.0, 5.0)


def test_a_settled_claim_is_not_lost_afterwards() -> None:
    settled = lease("settled")
    settled.end("the server has stopped")
    assert (settled.settled, settled.over) == (Verb.ACK, "")
