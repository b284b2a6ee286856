"""Make the replies that all pages consist of: a template, a message, a stream that keeps a page up to date."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import HTMLResponse, StreamingResponse

from zkrq.client.inspection import shards_left_out
from zkrq.serve.payloads import showable
from zkrq.serve.rendering import make_templates
from zkrq.serve.rights import CALLER, Right
from zkrq.serve.watching import Look, Watching, takes_pushes

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.cluster import Cluster
    from zkrq.serve.security import Policy

PREVIEW = 10
"""Items that are named when it is asked whether to change them."""


class Question(NamedTuple):
    """What is asked before a change, and the form that makes it.

    ``subject``: what is changed; ``told``: the question, in sentences.  ``to``: where the form is sent, with ``fields``
    and with ``confirmed``, whose value is the key of the button in ``answers`` that was pressed.  ``back``: the address
    to go on with instead.  ``named``: the items that are changed, of which ``PREVIEW`` are shown.  ``here``: the page
    of the bar to which the question belongs.
    """

    subject: str
    told: Sequence[str]
    to: str
    answers: Mapping[str, str]
    back: str
    fields: Iterable[tuple[str, str]] = ()
    is_danger: bool = False
    named: Sequence[str] = ()
    here: str = "/"


class Showing:
    """Render pages about one cluster."""

    def __init__(self, cluster: Cluster, watching: Watching, policy: Policy) -> None:
        self._cluster = cluster
        self._watching = watching
        self._policy = policy
        self._templates = make_templates()

    def common(self, look: Look) -> dict[str, Any]:
        """Return what every page shows that is kept up to date."""
        view, shards = self._cluster.view, self._cluster.shards
        return {
            "look": look,
            "shards": shards if len(shards) > 1 else {},
            "left_out": shards_left_out(look.queues.values(), shards),
            "writable": takes_pushes(self._cluster),
            "members": len(view.members),
            "needed": view.min_replicas,
        }

    def render(self, template: str, **values: object) -> str:
        """Render a template.  Whatever it is given is escaped, and no text in it keeps the page from being sent."""
        caller = CALLER.get()
        values = {
            "notice": "",
            "namespace": self._cluster.namespace,
            "session": bool(self._policy.known),
            "read_only": caller.right < Right.OPERATE,
            "administers": caller.right >= Right.ADMINISTER,
            **values,
        }
        return showable(self._templates.get_template(template).render(**values))

    def reply(self, template: str, status: int = 200, **values: object) -> Response:
        """Return a page."""
        return HTMLResponse(self.render(template, **values), status)

    def ask(self, asked: Question) -> Response:
        """Return a page with a question."""
        return self.reply("ask.html", asked=asked, preview=PREVIEW)

    def live(
        self, title: str, here: str, fragment: str, stream: str, *, up: str | None = None, **values: Any
    ) -> Response:
        """Return a page that is kept up to date.

        ``here``: see ``Question``; ``fragment``: the template of its content.  ``stream``: the address from which this
        comes again, empty: it stays as it is.  ``up``: the queue to which the page belongs, empty: to none, and None
        for a page of the bar itself.
        """
        return self.reply("live.html", title=title, here=here, fragment=fragment, stream=stream, up=up, **values)

    def add_live(
        self, router: APIRouter, title: str, path: str, fragment: str, values: Callable[[Look], dict[str, Any]]
    ) -> None:
        """Add a page of the bar, and what keeps it up to date, ``path`` and ``/live``.

        ``values``: returns what ``fragment`` shows, beside what all such pages do.
        """

        def shown(look: Look) -> dict[str, Any]:
            return {**self.common(look), **values(look)}

        async def page(request: Request) -> Response:
            return self.live(title, path, fragment, f"{path}/live", **shown(await self._watching.look()))

        async def live(request: Request) -> Response:
            async def render(look: Look) -> str:
                return self.render(fragment, **shown(look))

            return self.stream(render)

        router.add_route(path, page)
        router.add_route(f"{path}/live", live)

    def message(self, status: int, title: str, message: str, back: str = "/") -> Response:
        """Return a page that says one thing.  ``back``: the address to go on with."""
        return self.reply("message.html", status, title=title, message=message, back=back)

    def stream(self, render: Callable[[Look], Awaitable[str]]) -> Response:
        """Send what is rendered at each look.  Raises ``Busy``."""
        self._watching.check_room()

        async def events() -> AsyncGenerator[str]:
            async with aclosing(self._watching.looks()) as looks:
                async for look in looks:
                    lines = (await render(look)).splitlines()
                    yield "".join(f"data: {line}\n" for line in lines) + "\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
