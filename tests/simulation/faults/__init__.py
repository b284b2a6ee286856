"""The faults by name, in groups.

A fault is a coroutine of the world: it happens, lasts, and is undone.  ``covered.may_harm`` is the one place that says
which losses of data zkrq promises to survive.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.faults.access import password, permission
from tests.simulation.faults.alone import closed, drag, hang
from tests.simulation.faults.clients import (
    cancel,
    drop,
    hub_cut,
    hub_deaf,
    hub_expire,
    hub_lose_reply,
    hub_lose_swap,
    hub_slow,
    hub_stale,
    pause,
    reopen,
)
from tests.simulation.faults.clocks import clock_step, leap
from tests.simulation.faults.covered import Fault
from tests.simulation.faults.network import breaks, cut, nameless, one_link, silent, slow
from tests.simulation.faults.operators import add_server, recover, remove_server
from tests.simulation.faults.servers import (
    away,
    flush,
    full,
    replica,
    restart,
    restart_all,
    restart_empty,
    restart_old,
    stop,
)
from tests.simulation.faults.shards import primaries, remap, reshard, shard_away

NETWORK: Mapping[str, Fault] = {"slow": slow, "cut": cut, "breaks": breaks, "nameless": nameless, "silent": silent}

SERVER: Mapping[str, Fault] = {
    "stop": stop,
    "restart": restart,
    "restart_all": restart_all,
    "restart_empty": restart_empty,
    "restart_old": restart_old,
    "flush": flush,
    "full": full,
    "replica": replica,
}

CLIENT: Mapping[str, Fault] = {
    "drop": drop,
    "cancel": cancel,
    "pause": pause,
    "hub_cut": hub_cut,
    "hub_deaf": hub_deaf,
    "hub_expire": hub_expire,
    "hub_lose_reply": hub_lose_reply,
    "hub_lose_swap": hub_lose_swap,
    "hub_slow": hub_slow,
    "hub_stale": hub_stale,
    "reopen": reopen,
}

OWN: Mapping[str, Fault] = {"password": password, "permission": permission}
"""What lies with one client: nobody else may suffer for it."""

OPERATOR: Mapping[str, Fault] = {"recover": recover, "add_server": add_server, "remove_server": remove_server}

OTHERS: Mapping[str, Fault] = {"one_link": one_link, "clock_step": clock_step}

SHARDS: Mapping[str, Fault] = {"shard_away": shard_away, "primaries": primaries, "reshard": reshard}
"""Only where there are two."""

MAPS: Mapping[str, Fault] = {"remap": remap}
"""Changes of the shard map, which are no faults.  In some seeds with two shards nothing else happens, and no push may
fail."""

ALONE: Mapping[str, Fault] = {"hang": hang, "closed": closed, "drag": drag}
"""In some seeds there is only one of these: what happens then is known exactly."""

LEAP: Mapping[str, Fault] = {"leap": leap}
"""The same, drawn by itself."""

AWAY: Mapping[str, Fault] = {"away": away}
"""Drawn by itself, where pushes recur."""

FAULTS: Mapping[str, Fault] = {**NETWORK, **SERVER, **CLIENT, **OWN, **OPERATOR, **OTHERS}
