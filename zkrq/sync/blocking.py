"""Make calls for threads out of the asynchronous ones: with the same arguments, results and docstrings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import signature
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)


class Outside(Protocol[X_co]):
    """An object for threads, with an asynchronous one inside."""

    def _call(self, act: Callable[[X_co], Awaitable[R]]) -> R:
        """Await ``act`` of the asynchronous object on the event loop of its cluster."""
        ...


def blocking(method: Callable[Concatenate[X, P], Awaitable[R]]) -> Callable[Concatenate[Outside[X], P], R]:
    """Return the method for threads that calls this one, and waits for it."""

    @wraps(method)
    def call(self: Outside[X], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(lambda inside: method(inside, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def with_arguments_of(method: Callable[..., object]) -> Callable[[F], F]:
    """Show the arguments of ``method`` as those of a method for threads that passes its own on."""

    def show(call: F) -> F:
        call.__signature__ = signature(method)  # pyright: ignore[reportFunctionMemberAccess]
        return call

    return show
