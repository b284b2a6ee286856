"""Let browsers in for a token, and out again."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.responses import RedirectResponse

from zkrq.serve.problems import UNAUTHORIZED
from zkrq.serve.security import COOKIE, SESSION_SECONDS, Policy, end_session, find_token, make_session, session_of

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.serve.showing import Showing


class Sessions:
    """Answer the login page."""

    def __init__(self, showing: Showing, policy: Policy) -> None:
        self._showing = showing
        self._policy = policy

    def add_to(self, router: APIRouter) -> None:
        """Add the pages, with their paths."""
        router.add_route("/login", self.login, ["GET", "POST"])
        router.add_route("/logout", self.logout, ["POST"])

    async def login(self, request: Request) -> Response:
        """Let a browser in for a token."""
        if not self._policy.known:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return self._showing.reply("login.html")
        fields = parse_qs((await request.body()).decode(errors="replace"))
        if (token := find_token(self._policy, fields.get("token", [""])[0])) is None:
            return self._showing.reply("login.html", UNAUTHORIZED.status, notice="That is not the token.")
        reply = RedirectResponse("/", 303)
        reply.set_cookie(
            COOKIE,
            make_session(token, time.time(), secrets.token_hex(8)),
            max_age=SESSION_SECONDS,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return reply

    async def logout(self, request: Request) -> Response:
        """End a session in this process, and have the browser forget it; other processes do not hear of it."""
        end_session(self._policy, session_of(request.headers.get("cookie", "")), time.time())
        reply = RedirectResponse("/login", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply
