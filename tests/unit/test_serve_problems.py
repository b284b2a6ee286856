"""Errors as clients over HTTP are told them."""

from __future__ import annotations

import pickle

from zkrq.base.errors import ClaimLost
from zkrq.serve.problems import kind_of


def test_a_settlement_that_may_have_been_carried_out_is_not_told_as_nothing() -> None:
    assert kind_of(ClaimLost(id="x")).happened == "nothing"
    in_doubt = kind_of(pickle.loads(pickle.dumps(ClaimLost(id="x", in_doubt=True))))
    assert (in_doubt.name, in_doubt.status, in_doubt.happened) == ("ClaimLost", 410, "unknown")
