from typing import Generic, TypeVar

_Answer = TypeVar("_Answer", covariant=True)

# At run time a request does not know its answer's type; aiozk finds it by the opcode.
class Request(Generic[_Answer]):
    def serialize(self, xid: int | None = None) -> bytes: ...
