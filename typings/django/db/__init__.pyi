from collections.abc import Callable
from contextlib import AbstractContextManager

class _Transaction:
    def atomic(self) -> AbstractContextManager[None]: ...
    def on_commit(self, func: Callable[[], object]) -> None: ...

transaction: _Transaction
