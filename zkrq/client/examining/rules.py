"""Conclude from facts what is wrong with a namespace, and what to do about it: a table of rules, without I/O.

Each rule looks at one kind of mistake.  Findings with the same advice are told once, with the names of all servers that
they are about, so that what is wrong everywhere is one line.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.events import shorten
from zkrq.protocol.clocks import CLOCK_WARNING, PUT_WINDOW, find_apart
from zkrq.protocol.lives import alive, holding, restarted, with_data
from zkrq.protocol.replies import Status, Verdict, denial
from zkrq.protocol.server_info import OLDEST

if TYPE_CHECKING:
    from zkrq.client.examining.facts import Facts, ServerFacts

SLOW_SHARE = 0.25
"""Share of ``command_timeout`` that a round trip may take before it is told."""

SLOW_SECONDS = 0.05
"""Seconds of a round trip to Redis that are told: each push waits for the slowest server."""

FULL_SHARE = 0.9
"""Share of ``maxmemory``, and of ``maxclients``, that is told."""

SHOWN = 10
"""Clients that a finding names."""

ROUNDING = 0.02
"""Seconds by which ZooKeeper may round a session timeout."""


class Gravity(enum.Enum):
    """How bad a finding is."""

    WRONG = "wrong"
    """To be corrected: it does not pass by itself."""
    DOWN = "down"
    """It may pass, for instance when a server is started."""
    WARNING = "warning"
    """Everything works, with less than is promised or usual."""


class Finding(NamedTuple):
    """What is wrong with ``about`` (names of servers, or empty), and the next step.

    ``{them}`` in ``step`` stands for these names.
    """

    gravity: Gravity
    kind: str
    about: tuple[str, ...]
    what: str
    step: str

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        names = ", ".join(self.about)
        return f"{names + ': ' if names else ''}{self.what}; {self.step.replace('{them}', ' '.join(self.about))}"


Rule = Callable[["Facts"], Iterator[Finding]]
_Each = Callable[["ServerFacts", "Facts"], Iterator[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """Return what is wrong, the worst first.  Empty: nothing was found."""
    found: dict[tuple[object, ...], Finding] = {}
    for finding in (finding for rule in RULES for finding in rule(facts)):
        key = (finding.gravity, finding.kind, finding.what, finding.step)
        known = found.get(key)
        found[key] = finding._replace(about=(*known.about, *finding.about)) if known else finding
    order = list(Gravity)
    return sorted(found.values(), key=lambda finding: order.index(finding.gravity))


# -- one server --------------------------------------------------------------------------------------------------------


def _unreachable(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    if server.refusal is None or server.id in facts.strangers:
        return
    if server.refusal.verdict is Verdict.CORRECT:
        text = denial(server.id, server.refusal).removeprefix(f"server {server.id} ")
        what, _, step = text.rpartition("): ")
        yield Finding(Gravity.WRONG, "denied", (server.id,), f"it {what})", step)
    elif server.refusal.status is Status.CROWDED:
        yield Finding(Gravity.DOWN, "denied", (server.id,), server.refusal.reason, f"end some, then {_MORE_CLIENTS}")
    else:
        reason = server.refusal.reason
        if (step := _remedy(reason)) is None:
            view = next((view for view in facts.views.values() if server.id in view.servers), None)
            gone = "if it will not come back, `zkrq servers add URL` another one, then `zkrq servers remove {them}`"
            step = f"start it, or open the way to it ({server.url})"
            step += f"; {gone}" if view and alive(view, facts.lives) else ""
        yield Finding(Gravity.DOWN, "unreachable", (server.id,), f"cannot be reached ({reason})", step)


_MORE_CLIENTS = "raise its maxclients (`CONFIG SET maxclients`, and in redis.conf)"

_UNKNOWN_NAME = "correct its name, or let this host's DNS or /etc/hosts know it"

_REMEDIES: tuple[tuple[str, str], ...] = (
    ("could not be resolved", _UNKNOWN_NAME),
    ("Name or service not known", _UNKNOWN_NAME),
    ("No address associated", _UNKNOWN_NAME),
    ("nodename nor servname", _UNKNOWN_NAME),  # macOS
    ("name resolution", "look at the DNS servers of this host: they do not answer"),
    (
        "BUSY",
        "another program's script keeps it busy: `redis-cli SCRIPT KILL` or `FUNCTION KILL` ends it, if it only read",
    ),
    ("LOADING", "wait until it has read its data from its disk"),
    ("MASTERDOWN", "it is a replica: `redis-cli REPLICAOF NO ONE` on it"),
)
"""What to do about a server that cannot be used, by words of its reason, where it is not to start it."""


def _remedy(reason: str) -> str | None:
    """Return what to do about a reason of ``_REMEDIES``, None for any other."""
    return next((step for words, step in _REMEDIES if words in reason), None)


def _role(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    if (role := server.info.get("role")) not in ("master", None):
        what = f"it is a replica (role {role}), and zkrq replicates by itself"
        yield Finding(Gravity.WRONG, "replica", (server.id,), what, "`redis-cli REPLICAOF NO ONE` on it; no Sentinel")
    if server.info.get("cluster_enabled") == "1":
        what = "cluster mode is on, and zkrq needs independent servers"
        yield Finding(Gravity.WRONG, "cluster", (server.id,), what, "set `cluster-enabled no`, and restart it")


def _version(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    text = server.info.get("redis_version", "")
    version = tuple(int(part) for part in text.split(".") if part.isdecimal())
    if version < OLDEST:
        what = f"it is Redis {text}, which has no functions"
        yield Finding(Gravity.WRONG, "version", (server.id,), what, "upgrade it to Redis 7 or later, or Valkey")


def _memory(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        what = f"maxmemory-policy is {policy}: it would drop items"
        step = "`CONFIG SET maxmemory-policy noeviction`, and in redis.conf"
        yield Finding(Gravity.WRONG, "eviction", (server.id,), what, step)
    used, most = server.number("used_memory"), server.number("maxmemory")
    if most and used >= most:
        what = f"its memory is full ({_mebibytes(used)} of {_mebibytes(most)}), so pushes are refused everywhere"
        step = "let the queues drain (`zkrq stats`), or raise its maxmemory (`CONFIG SET maxmemory`, and in redis.conf)"
        yield Finding(Gravity.WRONG, "full", (server.id,), what, step)
    elif most and used >= FULL_SHARE * most:
        what = f"its memory is nearly full ({_mebibytes(used)} of {_mebibytes(most)})"
        yield Finding(Gravity.WARNING, "full", (server.id,), what, "raise its maxmemory, or drain the queues")
    clients, room = server.number("connected_clients"), server.number("maxclients")
    if room and clients >= FULL_SHARE * room:
        yield Finding(Gravity.WARNING, "clients", (server.id,), f"{clients} of {room} clients", _MORE_CLIENTS)


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _disk(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    # What a disk keeps counts only when all in-sync servers stop at the same time; then it is all that counts.
    info = server.info
    if info.get("aof_enabled") == "0":
        what = "appendonly is off: if all in-sync servers stop at the same time, what they hold is lost"
        step = "`CONFIG SET appendonly yes`, and in redis.conf"
        yield Finding(Gravity.WARNING, "disk", (server.id,), what, step)
    elif server.appendfsync == "no":
        what = "appendfsync is no: a power cut of all servers may lose half a minute"
        step = "`CONFIG SET appendfsync everysec` (or always, which loses nothing), and in redis.conf"
        yield Finding(Gravity.WARNING, "disk", (server.id,), what, step)
    failed = [name for name in _DISK_FIELDS if info.get(name) == "err"]
    if failed:
        what = f"it cannot write to its disk ({', '.join(failed)}), for which it may refuse every call"
        yield Finding(Gravity.WRONG, "disk", (server.id,), what, "make room on its disk, and look at its log")


_DISK_FIELDS = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
"""Fields of INFO that say whether a server could write to its disk."""


def _rights(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    if server.lacking == ("function|load",):
        what = (
            "this client's user may not load functions, so an administrator loads zkrq's library, also when it is lost"
        )
        step = "nothing, if that is intended: see the rights of a Redis user in docs/security.md"
        yield Finding(Gravity.WARNING, "rights", (server.id,), what, step)
    elif server.lacking:
        rights = " ".join(f"+{name}" for name in server.lacking)
        what = f"this client's user lacks rights ({', '.join(server.lacking)})"
        step = f"`ACL SETUSER` it with {rights}, and the keys and channels of docs/security.md"
        yield Finding(Gravity.WRONG, "rights", (server.id,), what, step)


def _latency(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    timeout = facts.settings.command_timeout
    if server.round_trip >= min(SLOW_SECONDS, SLOW_SHARE * timeout):
        what = f"a round trip takes {1000 * server.round_trip:.0f} ms, and every push waits for it"
        is_short = server.round_trip >= SLOW_SHARE * timeout
        step = f"raise command_timeout ({timeout:g} s), or bring it nearer" if is_short else "bring it nearer"
        yield Finding(Gravity.WARNING, "latency", (server.id,), what, step)


def _strange(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    if server.id not in facts.strangers:
        return
    run_id = server.info.get("run_id", "")
    what, step = f"it does not belong to namespace {facts.settings.namespace}", "take it out of ZKRQ_REDIS"
    if name := next(filter(None, (view.id_of(run_id) for view in facts.views.values())), None):
        what, step = f"it is called {name} in namespace {facts.settings.namespace}", "name it so in ZKRQ_REDIS"
    elif server.refusal is None:
        step = f"`zkrq servers add {server.url} --name {server.id}`, or {step}"
    yield Finding(Gravity.WARNING, "stranger", (server.id,), what, step)


def _belongs(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    view = next((view for view in facts.views.values() if server.id in view.servers), None)
    if view is None:
        return
    known = view.id_of(server.info.get("run_id", "")) or ""
    if known and known != server.id:
        what = f"at {server.url} is the server that all others call {known}"
        yield Finding(Gravity.WRONG, "name", (server.id,), what, "give it that name in ZKRQ_REDIS, as in all clients")
    elif server.deployment not in ("", view.deployment):
        what = "it holds the items of another deployment of this namespace"
        step = (
            f"look whether it is the right server; `zkrq servers add {server.url} --name {server.id} --force` wipes it"
        )
        yield Finding(Gravity.WRONG, "foreign", (server.id,), what, step)
    elif server.epoch > view.epoch:
        shard = next(shard for shard, known in facts.views.items() if known is view)
        what = f"it has seen a later epoch than ZooKeeper's view ({view.epoch}), which is that of an older backup"
        step = (
            "restore the latest one; without it `zkrq servers recover --older-zookeeper "
            f"{'' if shard == facts.first else f'--shard {shard} '}NAME...` with those in sync then: "
            "docs/operations.md#zookeeper-restored-from-a-backup"
        )
        yield Finding(Gravity.WRONG, "lost", (server.id,), what, step)


def _set_aside(server: ServerFacts, facts: Facts) -> Iterator[Finding]:
    if server.set_aside:
        named = shorten([f"{queue} ({number:,})" for queue, number in server.set_aside.items()])
        what = f"damaged entries that no server could read are set aside, in queue {named}"
        step = (
            "`zkrq damaged list` names them; then `zkrq damaged restore` or `drop` each: "
            "docs/operations.md#damaged-entries"
        )
        yield Finding(Gravity.WARNING, "damaged", (server.id,), what, step)


# -- all together ------------------------------------------------------------------------------------------------------


def _each(rule: _Each, *, read: bool = True) -> Rule:
    """Return the rule that looks at every server; ``read``: at those of which something could be read."""

    def look(facts: Facts) -> Iterator[Finding]:
        for server in (facts.read if read else facts.servers).values():
            yield from rule(server, facts)

    return look


def _zookeeper(facts: Facts) -> Iterator[Finding]:
    down = [host for host in facts.hosts if host.reason]
    for host in down:
        state = f"{len(facts.hosts) - len(down)} of {len(facts.hosts)} answer, {_most(facts)} are needed"
        room = "end clients of this machine, or raise maxClientCnxns in zoo.cfg"
        step = f"{room if host.is_crowded else _remedy(host.reason) or 'start it'}: {state}"
        yield Finding(Gravity.DOWN, "zookeeper", (host.host,), f"ZooKeeper server cannot be used ({host.reason})", step)
    alone = [host.host for host in facts.hosts if host.mode == "standalone"]
    if len(facts.hosts) > 1 and alone:
        what = "it runs alone (standalone), though several are given: each of them would have a namespace of its own"
        step = "write all servers into its zoo.cfg (server.1=..., server.2=..., server.3=...), and restart it"
        yield Finding(Gravity.WRONG, "standalone", tuple(alone), what, step)
    if alone and len(facts.hosts) == 1:
        what = "ZooKeeper is one server: while it is away no dead Redis server can be evicted"
        yield Finding(Gravity.WARNING, "standalone", tuple(alone), what, "run three")
    if facts.session and not facts.unfounded and not down:
        gravity = Gravity.DOWN if facts.passing else Gravity.WRONG
        yield Finding(gravity, "session", (), f"no session with ZooKeeper: {facts.session}", "look at its log")
    wish = facts.settings.session_timeout
    if facts.granted and abs(facts.granted - wish) > ROUNDING:
        bound = "maxSessionTimeout" if facts.granted < wish else "minSessionTimeout"
        what = f"session_timeout is {wish:g} s, and ZooKeeper gives {facts.granted:g} s"
        step = f"ask for {facts.granted:g} s (ZKRQ_SESSION_TIMEOUT), or set {bound} in zoo.cfg"
        yield Finding(Gravity.WARNING, "timeout", (), what, step)


def _most(facts: Facts) -> int:
    return len(facts.hosts) // 2 + 1


def _namespace(facts: Facts) -> Iterator[Finding]:
    if not facts.unfounded:
        return
    holding = [server for server in facts.read.values() if server.queues or server.generation]
    if holding:
        what = f"ZooKeeper knows no namespace {facts.settings.namespace}, and these servers hold one of that name"
        step = (
            "correct ZKRQ_ZOOKEEPER; if ZooKeeper has lost its data, `zkrq servers recover --without-zookeeper {them}`"
        )
        yield Finding(Gravity.WRONG, "namespace", tuple(server.id for server in holding), what, step)
    else:
        what, _, _ = facts.session.partition("; it is founded once")
        yield Finding(Gravity.WRONG, "namespace", (), what, "correct ZKRQ_NAMESPACE, or found it with `zkrq found`")


def _readable(facts: Facts) -> Iterator[Finding]:
    for name, (why, step) in facts.unreadable.items():
        where = f"shard {name}: " if len(facts.unreadable) + len(facts.views) > 1 and name != "map" else ""
        yield Finding(Gravity.WRONG, "view", (), f"{where}namespace {facts.settings.namespace}: {why}", step)


def _releases(facts: Facts) -> Iterator[Finding]:
    """Tell of clients of an older release, and of a roll that was not ended."""
    level = min((view.level for view in facts.views.values()), default=0)
    if refused := _not_speaking(facts, level):
        what = f"level {level} is active, which these do not speak, so they are refused: {refused}"
        yield Finding(Gravity.WRONG, "release", (), what, "replace them by the release of the others, or end them")
    if not 0 < level < facts.latest:
        return
    what = f"level {level} is active, so what needs level {facts.latest} is refused"
    step = "`zkrq upgrade --check`, then `zkrq upgrade`"
    if late := _not_speaking(facts, facts.latest):
        what, step = f"{what}, and these do not speak it: {late}", f"replace them, then {step}"
    yield Finding(Gravity.WARNING, "release", (), what, step)


def _not_speaking(facts: Facts, level: int) -> str:
    names = sorted(each.label for each in facts.clients.values() if level not in each.levels) if level else []
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _twins(facts: Facts) -> Iterator[Finding]:
    by_run: dict[str, list[str]] = {}
    for id, server in facts.read.items():
        if id not in facts.strangers:
            by_run.setdefault(server.info.get("run_id", ""), []).append(id)
    for ids in by_run.values():
        if len(ids) > 1:
            what = "these are one Redis server, and N copies need N servers"
            yield Finding(Gravity.WRONG, "twins", tuple(ids), what, "correct the URLs of ZKRQ_REDIS")


def _clocks(facts: Facts) -> Iterator[Finding]:
    ahead = {id: server.ahead for id, server in facts.read.items()}
    for text in find_apart(ahead, CLOCK_WARNING):
        apart = any(abs(seconds) > PUT_WINDOW and f"server {id} " in text for id, seconds in ahead.items())
        step = "synchronise it (chrony)" + (f": beyond {PUT_WINDOW:g} s pushes are refused" if apart else "")
        yield Finding(Gravity.WRONG if apart else Gravity.WARNING, "clock", (), text, step)


def _redundancy(facts: Facts) -> Iterator[Finding]:
    for shard, view in facts.views.items():
        where = f"shard {shard}: " if len(facts.views) > 1 else ""
        out = sorted(view.servers.keys() - view.members.keys())
        state = f"{where}{len(view.members)} of {len(view.servers)} servers are in sync"
        if len(view.members) < view.min_replicas:
            what = f"{state}, and a push needs {view.min_replicas}: pushes are refused"
            step = f"bring back {', '.join(out)}, or `zkrq servers add URL` another one"
            yield Finding(Gravity.DOWN, "redundancy", (), what, step)
        elif out:
            what = f"{state} (out: {', '.join(out)})"
            yield Finding(Gravity.WARNING, "redundancy", (), what, "a client brings back what answers; see its log")
        if len(view.servers) == view.min_replicas > 1:
            what = f"{where}{len(view.servers)} servers and min_replicas {view.min_replicas}: one failure stops pushes"
            yield Finding(Gravity.WARNING, "redundancy", (), what, "`zkrq servers add URL` one more")
        if view.min_replicas == 1 and len(view.servers) > 1:
            what = f"{where}min_replicas is 1: an item may be lost with one server"
            yield Finding(Gravity.WARNING, "redundancy", (), what, "found a namespace with 2, and move the items there")


def _recovery(facts: Facts) -> Iterator[Finding]:
    """Compare the lives that each view names with those in which its servers were met."""
    for shard, view in facts.views.items():
        ids = holding(view)
        met = {id: life for id, life in facts.lives.items() if id in ids}
        if not met or any(server.epoch > view.epoch for id, server in facts.read.items() if id in ids):
            continue
        doubtful = {id for id in ids if id in facts.servers and _is_doubtful(facts.servers[id], facts, shard)}
        if living := alive(view, met):
            yield from _restarted_alone((view.members.keys() & met.keys()) - doubtful - set(living))
        elif not doubtful:
            yield _restarted_all(facts, shard)


def _is_doubtful(server: ServerFacts, facts: Facts, shard: str) -> bool:
    """Tell whether it is unknown if a server lives: it does not let this client in, or is another one."""
    if server.refusal is not None:
        return server.refusal.verdict is Verdict.CORRECT
    view = facts.views[shard]
    other = view.id_of(server.info.get("run_id", "")) not in (None, server.id)
    return other or server.deployment not in ("", view.deployment)


def _restarted_alone(ids: Set[str]) -> Iterator[Finding]:
    for id in sorted(ids):
        what = "it is not in the life that the view names: it was restarted or emptied"
        step = "a client evicts it and copies everything to it; see its log"
        yield Finding(Gravity.WARNING, "restarted", (id,), what, step)


def _restarted_all(facts: Facts, shard: str) -> Finding:
    view, met = facts.views[shard], facts.lives
    ids = holding(view)
    where = f"shard {shard}: " if len(facts.views) > 1 else ""
    silent, kept = sorted(ids.keys() - met.keys()), sorted(with_data(view, met))
    names = " ".join(sorted(restarted(view, met)))
    command = f"`zkrq servers recover {'' if shard == facts.first else f'--shard {shard} '}{names}`"
    what = f"{where}all servers in sync were restarted or emptied"
    if silent:
        what = f"{where}the servers in sync that answer were restarted or emptied; {', '.join(silent)} may hold more"
        step = f"start {' and '.join(silent)}; or continue without what only {_it(silent)}: {command}"
        return Finding(Gravity.DOWN, "recovery", (), what, step)
    if not kept:
        what = f"{what}, and none of {', '.join(sorted(ids))} has brought its data back"
        step = f"look whether their disks can be had; to start again with what is there: {command}"
        return Finding(Gravity.WRONG, "recovery", (), what, step)
    what = f"{what}, and {', '.join(kept)} {'has' if len(kept) == 1 else 'have'} brought the data back"
    return Finding(Gravity.DOWN, "recovery", (), what, "the next client that connects merges it, as `zkrq stats` does")


def _it(silent: Sequence[str]) -> str:
    return "it holds" if len(silent) == 1 else "they hold"


def _agreement(facts: Facts) -> Iterator[Finding]:
    given = facts.settings.min_replicas
    first = next(iter(facts.views.values()), None)
    if first is None:
        return
    if given is not None and given != first.min_replicas:
        what = f"this client says min_replicas {given}, and the namespace was founded with {first.min_replicas}"
        yield Finding(Gravity.WRONG, "agreement", (), what, "unset ZKRQ_MIN_REPLICAS: it is fixed")
    if not first.servers.keys() & set(facts.given):
        what = f"none of the given servers belongs to the namespace, which has {', '.join(first.servers)}"
        yield Finding(Gravity.WRONG, "agreement", (), what, "correct ZKRQ_REDIS, or ZKRQ_NAMESPACE")
    versions = {f"{each.product} {each.version}" for each in facts.read.values()}
    if len(versions) > 1:
        what = f"the servers are of different versions: {', '.join(sorted(versions))}"
        yield Finding(Gravity.WARNING, "version", (), what, "upgrade the older ones, one at a time")


RULES: tuple[Rule, ...] = (
    _each(_unreachable, read=False),
    _zookeeper,
    _namespace,
    _readable,
    _each(_role),
    _each(_version),
    _each(_memory),
    _each(_rights),
    _each(_belongs),
    _each(_strange, read=False),
    _twins,
    _agreement,
    _releases,
    _clocks,
    _recovery,
    _redundancy,
    _each(_set_aside),
    _each(_disk),
    _each(_latency),
)
"""Every rule; the order is that of findings of the same gravity."""
