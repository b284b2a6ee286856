"""The servers of a namespace, and its level: what administrators see and change."""

from __future__ import annotations

from zkrq.base.checks import MAX_ID, check_id
from zkrq.operations.kinds import ByName, Choice, Count, Flag, Many, Moment, Seconds, Text
from zkrq.operations.operation import Field, Operation, Parameter, Record

URL_MAX = 2_000
"""Characters in the URL of a server."""

SHARD_MAX = 32
"""Characters in the name of a shard."""


def _check_server(name: str, server: str) -> str:
    return check_id("a server's name", server)


SERVER_PLACE = Parameter("server", Text(MAX_ID, checked=_check_server), "The server's name.", required=True)

SERVER = Record(
    "NamespaceServer",
    "A Redis server of the namespace, as the server that replies sees it.",
    (
        Field(
            "place", Choice(("member", "learner", "eligible", "out")), "`member`: in sync; `learner`: being caught up."
        ),
        Field("connected", Flag(), "Whether it is connected to."),
        Field("shard", Text(), "The shard that it is in."),
        Field("out_since", Moment(), "When it left the servers in sync; null: it has not.", nullable=True),
        Field("reason", Text(), "Why it cannot be used, if that is known.", nullable=True),
        Field("version", Text(), "Of Redis; empty while it is not connected to."),
    ),
)

LIST_SERVERS = Operation(
    "list_servers",
    "List the Redis servers of the namespace, and which are in sync.",
    result=Record(
        "NamespaceServers",
        "The servers of the namespace.",
        (
            Field("servers", ByName(SERVER), "By name, those of all shards."),
            Field("trouble", Many(Text()), "Why pushes or claims do not succeed now."),
            Field("warnings", Many(Text()), "What works with less redundancy than it should have."),
        ),
    ),
    method="GET",
    path="/servers",
    on="namespace",
    command="servers list",
    subject="servers",
)

ADD_SERVER = Operation(
    "add_server",
    "Add a Redis server to the namespace; the reply comes once it is in sync, after all items were copied.",
    (
        Parameter("url", Text(URL_MAX), "Its URL. All that it holds of this namespace is wiped.", required=True),
        Parameter("name", SERVER_PLACE.kind, "Its name.", "host and port, or the next one: `redis-4` after `redis-3`"),
        Parameter("shard", Text(SHARD_MAX), "The shard that gets another copy of its items.", "main", default="main"),
        Parameter("force", Flag(), "Take it over from another deployment, and wipe its items.", "false", default=False),
    ),
    result=Record(
        "ServerAdded",
        "The server is in sync.",
        (Field("server", Text(), "Its name."), Field("seconds", Seconds(), "What it took.")),
    ),
    method="POST",
    path="/servers",
    more="It may take long. If the request is cut off, the server is still caught up: `list_servers` tells. To "
    "replace a server, add the new one first, then remove the other.",
    on="namespace",
    command="servers add",
    subject="servers",
)

REMOVE_SERVER = Operation(
    "remove_server",
    "Remove a server from the namespace, dead or alive. Its data stays on it.",
    result=Record("ServerRemoved", "The server is removed.", (Field("server", Text(), "Its name."),)),
    method="DELETE",
    path="/servers/{server}",
    on="namespace",
    command="servers remove",
    subject="servers",
)

LATE = Record(
    "LateClient",
    "A client that does not speak a level.",
    (
        Field("host", Text(), "Its machine."),
        Field("description", Text(), "What it calls itself."),
        Field("version", Text(), "Its release; empty: it names none."),
    ),
)

_LEVEL = Parameter("level", Count(1), "The level.", "the latest of this release")

CHECK_UPGRADE = Operation(
    "check_upgrade",
    "Say which level is active, and which clients are too old for a later one.",
    (_LEVEL,),
    result=Record(
        "Upgradable",
        "Whether the level can be raised.",
        (
            Field("level", Count(), "The active level."),
            Field("wanted", Count(), "The one that was asked about."),
            Field("release", Text(), "First release that speaks it."),
            Field("late", Many(LATE), "Clients that do not speak it; none: it can be raised."),
        ),
    ),
    method="GET",
    path="/upgrade",
    on="namespace",
    command="upgrade",
    subject="servers",
)

UPGRADE = Operation(
    "upgrade",
    "Make a later level active, which all clients must speak; there is no way back.",
    (
        _LEVEL,
        Parameter("force", Flag(), "Even if clients are too old: they are refused.", "false", default=False),
    ),
    result=Record(
        "Upgraded",
        "The level is active.",
        (Field("level", Count(), "The active level."), Field("before", Count(), "The one before.")),
    ),
    method="POST",
    path="/upgrade",
    on="namespace",
    command="upgrade",
    subject="servers",
)

SERVERS = {each.name: each for each in (LIST_SERVERS, ADD_SERVER, REMOVE_SERVER, CHECK_UPGRADE, UPGRADE)}
"""Operations of administrators, by name."""
