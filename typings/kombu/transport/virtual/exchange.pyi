from collections.abc import Collection
from typing import Any

class ExchangeType:
    def __init__(self, channel: Any) -> None: ...
    def lookup(self, table: Any, exchange: str, routing_key: str, default: str | None) -> Collection[str]: ...

STANDARD_EXCHANGE_TYPES: dict[str, type[ExchangeType]]
