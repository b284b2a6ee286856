"""Cases that share one test: a case that takes microseconds is not worth the ten milliseconds that a test costs."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]

_shortened = reprlib.Repr()
_shortened.maxother = _shortened.maxstring = 120
_shortened.maxlevel = 3


class _Failures(list[Exception]):
    """What the cases of a test have raised."""

    @contextmanager
    def of(self, case: Mapping[str, object]) -> Generator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(", ".join(f"{name}={_shortened.repr(value)}" for name, value in case.items()))
            self.append(error)

    def show(self, cases: int) -> None:
        if self:
            raise ExceptionGroup(f"{len(self)} of {cases} cases", self)


def every(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test with each of the cases, given as to ``pytest.mark.parametrize``; fail with all that fail.

    The cases share the test's fixtures, so use it where a case leaves nothing behind.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    given = [dict(zip(wanted, (case,) if isinstance(names, str) else case, strict=True)) for case in cases]
    assert given, "no cases: the test would test nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def through_all(**fixtures: Any) -> None:
            failures = _Failures()
            for case in given:
                with failures.of(case):
                    test(**fixtures, **case)
            failures.show(len(given))

        @functools.wraps(test)
        async def await_all(**fixtures: Any) -> None:
            failures = _Failures()
            for case in given:
                with failures.of(case):
                    await test(**fixtures, **case)
            failures.show(len(given))

        made: Any = await_all if inspect.iscoroutinefunction(test) else through_all
        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        assert len(others) + len(wanted) == len(signature.parameters), f"{test.__name__} does not take {wanted}"
        made.__signature__ = signature.replace(parameters=others)
        return made

    return decorate
