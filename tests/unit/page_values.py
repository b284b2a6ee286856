"""What templates of the page are given in tests: every kind of figure, with hostile texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from zkrq.base.results import Result, ResultState
from zkrq.client.bulk import Bulk
from zkrq.client.consumers import Consumer
from zkrq.client.groups import Group, LargestGroups
from zkrq.client.health import Health, ServerHealth
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.items import Edited, EndedItem, Failure, Item
from zkrq.client.shards import ShardStatus
from zkrq.protocol.levels import UNNAMED
from zkrq.protocol.view import Life, ServerId, View
from zkrq.repair.progress import Progress
from zkrq.serve.curves import Point, draw
from zkrq.serve.failing import Reading
from zkrq.serve.failure_page import BUTTONS as FAILURE_BUTTONS
from zkrq.serve.failure_page import Wish as FailureWish
from zkrq.serve.job_page import VERBS
from zkrq.serve.jobs import Job
from zkrq.serve.letters import Failed, columns, group
from zkrq.serve.listing import Choice, Row, arrange
from zkrq.serve.queue_pages import Wish
from zkrq.serve.search_page import BUTTONS
from zkrq.serve.searching import FIELDS, Found, Search
from zkrq.serve.server_page import Ended
from zkrq.serve.showing import PREVIEW, Question
from zkrq.serve.shown import show_queue
from zkrq.serve.watching import Look

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


GOOD = Health(True, "connected", 7, {"redis-1": ServerHealth("member", True)})


BAD = Health(
    False,
    "suspended",
    8,
    {
        "<b>": ServerHealth("learner", True, Progress(10, 1000, 5.0, 198.0)),
        "new": ServerHealth("learner", True, Progress(0, 0, 0.0, None)),
        "out": ServerHealth("out", False, out_since=NOON, reason="<i>no</i>"),
    },
    ("server <i> refuses",),
)


FIGURES = Statistics(Sizes(1, 2, 3, 4), True, 5.0, 0, 0, 0, 0)


ONE_SERVER = View(
    1,
    {ServerId("redis-1"): Life("run", "generation")},
    {},
    {},
    {ServerId("redis-1"): "redis://a"},
    min_replicas=1,
    by="",
)


HOSTILE: Item[bytes] = Item(
    id='<script>"',
    item=None,
    payload=b'{"<u>": "</pre><script>"}',
    state="dead",
    priority=3,
    attempts=2,
    failures=1,
    pushed_at=NOON,
    seconds_left=5.0,
    owner="1",
    reason="<img src=x>",
    key='"onclick="',
    traceback="<x>",
    died_at=NOON,
    expires_in=9.0,
    headers={"<i>": "<b>"},
    edited=Edited(NOON, "<img>"),
    last_failures=(
        Failure(NOON, "<host>", 2.0, "<img src=x>", "<x>"),
        Failure(None, None, None, None, None),
    ),
)


ENDED = EndedItem('<script>"', "dead", NOON, 2.0, "1", 3, "<i>", "<b>", "<img src=x>")


LARGEST = LargestGroups([Group("<script>", 3, 1, "blocked", 9.0)], 1, whole=False)


ASKED = Question(
    "<i>", ["<u>"], '/"onclick', {"yes": "<b>"}, "/?<img>", [("<x>", "<img>")], True, [HOSTILE.id] * 12, here="/flows"
)


def job_of(state: Any) -> Job:
    """A job with hostile conditions."""
    search = Search({"key": "<img>", "text": '"onclick='}, {})
    queue: Any = None
    bulk = Bulk(queue, "cancel", {"key": "a"}, begun=NOON)
    bulk.found, bulk.changed, bulk.claimed, bulk.is_least = 5, 3, 1, True
    return Job(
        1, "emails", "cancel", search, bulk, 7, NOON, state, None, "<i>no answer</i>" if state == "failed" else ""
    )


def values_of(template: str, health: Health, *, read_only: bool, full: bool) -> dict[str, Any]:
    """All that a template is given."""
    points = [Point(0, 1), Point(2, 2)]
    figures = FIGURES if full else FIGURES._replace(oldest_ready=None, paused=False, sizes=Sizes(0, 0, 0, 0))
    letters = [HOSTILE] if full else []
    failed = [Failed("emails", each) for each in letters]
    consumers = {"1": Consumer("<i>worker</i>", {"emails": 1})} if full else {}
    row = Row("emails", figures, 1.0, 2.0, draw([0, 1], [1.0, 2.0])) if full else Row("emails", figures)
    is_dead, has_failed = template == "live_queue.html", "failed" in template or "failures" in template
    return {
        "namespace": "shop",
        "session": True,
        "notice": "",
        "title": "Queues",
        "fragment": "live_overview.html",
        "stream": "/live",
        "up": "emails" if full else None,
        "here": "/",
        "look": Look(health, NOON, {}, consumers, {}, "<u>no answer</u>" if full else ""),
        "shards": {"b": ShardStatus("open", None, "away"), "main": ShardStatus("open", ONE_SERVER, None)}
        if full
        else {},
        "left_out": ["b"] if full else [],
        "writable": health.ok,
        "members": 1,
        "needed": 2,
        "read_only": read_only,
        "administers": not read_only,
        "table": arrange([row], Choice(text="e" if full else ""))._replace(more=3 if full else 0),
        "choice": Choice("dead", text="<e>") if full else Choice(),
        "consumers": list(consumers.items()),
        "more_consumers": 2 if full else 0,
        "queue": "emails" if "find" in template else show_queue("emails", figures, points if full else [], NOON),
        "wish": FailureWish("<by>", group(failed)[0].value if full else None, "emails", "dead" if full else None, "<e>")
        if has_failed
        else Wish("dead" if is_dead else "ready", group=group(failed)[0].value if letters else None),
        "items": failed
        if is_dead or has_failed
        else {"emails": letters}
        if template == "live_consumer.html"
        else letters,
        "columns_of_failed": columns(failed),
        "reading": Reading(failed, ["<u>emails</u>"] if full else (), "<i>" if full else ""),
        "names": ["emails", "others"],
        "buttons": FAILURE_BUTTONS,
        "groups": group(failed),
        "more_groups": 1,
        "grouped": len(letters),
        "next": "<b>" if full else None,
        "chosen": len(letters),
        "name": "emails",
        "id": HOSTILE.id,
        "form": "",
        "item": HOSTILE if full else None,
        "largest": LARGEST if full else LargestGroups((), 0, whole=True),
        "result": Result("1", ResultState.DONE, b"<u>", has_value=True) if full else None,
        "text": "<img>",
        "found": ([("emails", HOSTILE)] if template == "find_all.html" else Found([HOSTILE], "<b>", True, [HOSTILE]))
        if full
        else ()
        if template == "find_all.html"
        else Found(()),
        "fields": FIELDS,
        "search": Search({"key": "<img>", "text": '"onclick='} if full else {}, {}),
        "before": 50 if full else 0,
        "deeds": BUTTONS,
        "jobs": [job_of(each) for each in ("running", "failed", "done")] if full else [],
        "verbs": VERBS,
        "asked": 3 if template == "find_all.html" else ASKED,
        "trouble": "<img>" if full else "",
        "owner": "1",
        "consumer": Consumer("<i>worker</i>", {"emails": 1}),
        "written": "<b>",
        "place": "<x>\n---^" if full else "",
        "back": "/?<img>",
        "preview": PREVIEW,
        "running": ["<i> is being added"] if full else [],
        "ended": ([Ended(NOON, "<b>", "<u>"), Ended(NOON, "<x>")] if template == "live_servers.html" else [ENDED])
        if full
        else [],
        "level_now": 1,
        "latest": 2,
        "release": "<u>",
        "late": [UNNAMED._replace(description="<i>", host="<b>")] if full else [],
    }
