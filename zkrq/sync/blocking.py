"""Make calls for threads out of the asynchronous ones: with the same arguments, results and docstrings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.sync.portal import Opened, Portal, Stream

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])
S = TypeVar("S")
X = TypeVar("X")
Y = TypeVar("Y")
X_co = TypeVar("X_co", covariant=True)


class Outside(Protocol[X_co]):
    """An object for threads, with an asynchronous one inside."""

    def _call(self, act: Callable[[X_co], Awaitable[R]]) -> R:
        """Await ``act`` of the asynchronous object on the event loop of its cluster."""
        ...


class Iterating(Protocol[X_co]):
    """An object for threads, with an asynchronous one in an open cluster."""

    _portal: Portal

    def _inside(self, cluster: Cluster) -> X_co:
        """Return the asynchronous object."""
        ...


def blocking(method: Callable[Concatenate[X, P], Awaitable[R]]) -> Callable[Concatenate[Outside[X], P], R]:
    """Return the method for threads that calls this one, and waits for it."""

    @wraps(method)
    def call(self: Outside[X], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(lambda inside: method(inside, *args, **kwargs))  # pyright: ignore[reportPrivateUsage]

    return call


def iterating(
    method: Callable[Concatenate[X, P], Stream[R]], show: Callable[[Opened, R], S], told: str
) -> Callable[Concatenate[Iterating[X], P], Generator[S]]:
    """Return the method for threads that iterates over the stream of this one, with each element as ``show`` makes it.

    Leaving the loop closes the stream.  ``told``: the type of what it returns, for readers of its signature.
    """

    @wraps(method)
    def iterate(self: Iterating[X], *args: P.args, **kwargs: P.kwargs) -> Generator[S]:
        opened = self._portal.open()  # pyright: ignore[reportPrivateUsage]
        inside = self._inside  # pyright: ignore[reportPrivateUsage]
        stream = opened.read(lambda: method(inside(opened.cluster), *args, **kwargs))
        return opened.iterate(stream, partial(show, opened))

    iterate.__doc__ = (method.__doc__ or "").replace("async for", "for")
    shown = signature(method).replace(return_annotation=f"Generator[{told}]")
    iterate.__signature__ = shown  # pyright: ignore[reportAttributeAccessIssue]
    return iterate


def itself(opened: Opened, element: R) -> R:
    """Show an element of a stream as it is."""
    return element


def passing_on(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[Concatenate[Y, ...], R]], Callable[Concatenate[Y, P], R]]:
    """Give a method for threads the arguments of ``method``, to which it passes them on."""
    return with_arguments_of(method)  # pyright: ignore[reportReturnType]


def with_arguments_of(method: Callable[..., object]) -> Callable[[F], F]:
    """Show the arguments of ``method`` as those of a method for threads that passes its own on."""

    def show(call: F) -> F:
        call.__signature__ = signature(method)  # pyright: ignore[reportFunctionMemberAccess]
        return call

    return show
