# The part of Celery that the tests, benchmarks and examples use.
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, overload

from kombu import Connection

P = ParamSpec("P")
R = TypeVar("R")

class AsyncResult:
    id: str

class Task(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult: ...
    def apply_async(
        self,
        args: tuple[object, ...] = ...,
        kwargs: Mapping[str, object] = ...,
        *,
        countdown: float | None = ...,
        eta: datetime | None = ...,
        priority: int | None = ...,
        **options: Any,
    ) -> AsyncResult: ...
    def retry(self, **options: Any) -> Exception: ...

class Celery:
    conf: Any
    control: Any
    pool: Any
    events: Any
    def __init__(self, main: str | None = ..., *, broker: str | None = ..., **conf: Any) -> None: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def send_task(self, name: str, args: tuple[object, ...] = ..., **options: Any) -> AsyncResult: ...
    def connection(self) -> Connection: ...
    def connection_for_write(self) -> Connection: ...
    def worker_main(self, argv: list[str]) -> None: ...
    def close(self) -> None: ...
