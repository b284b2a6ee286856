"""How payloads that are to be dropped are split into calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zkrq.protocol.calls import Gone
from zkrq.replication.cutting import CUT_MAX, PARTS_MAX, in_calls


@given(st.dictionaries(st.binary(min_size=1, max_size=4), st.sampled_from([b"", b"\1", b"\1\2"]), max_size=200))
def test_all_are_dropped_once(gone: dict[bytes, bytes]) -> None:
    found = [each for some in in_calls(gone) for each in some]
    assert sorted(found) == sorted(Gone(*each) for each in gone.items())


def test_a_call_drops_parts_of_few_bundles_or_many_whole_ones() -> None:
    gone = {b"whole %d" % n: b"" for n in range(CUT_MAX + 1)} | {b"part %d" % n: b"\1" for n in range(PARTS_MAX + 1)}
    assert [len(some) for some in in_calls(gone)] == [CUT_MAX, 1, PARTS_MAX, 1]
    assert not list(in_calls({}))
