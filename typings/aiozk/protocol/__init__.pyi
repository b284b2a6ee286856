from aiozk.protocol.request import Request
from aiozk.protocol.stat import Stat

WATCH_XID: int
SPECIAL_XIDS: tuple[int | None, ...]

class ID:
    scheme: str
    id: str

class ACL:
    perms: int
    id: ID

UNRESTRICTED_ACCESS: ACL
AUTHED_UNRESTRICTED: ACL

class ConnectResponse:
    timeout: int
    session_id: int
    password: bytes

class ConnectRequest(Request[ConnectResponse]):
    def __init__(
        self,
        *,
        protocol_version: int,
        last_seen_zxid: int,
        timeout: int,
        session_id: int,
        password: bytes,
        read_only: bool,
    ) -> None: ...

class AuthRequest(Request[object]):
    def __init__(self, *, type: int, scheme: str, auth: bytes) -> None: ...

class CloseRequest(Request[object]): ...

class SyncRequest(Request[object]):
    def __init__(self, *, path: str) -> None: ...

class ExistsResponse:
    stat: Stat

class ExistsRequest(Request[ExistsResponse]):
    def __init__(self, *, path: str, watch: bool) -> None: ...

class GetDataResponse:
    data: bytes | None
    stat: Stat

class GetDataRequest(Request[GetDataResponse]):
    def __init__(self, *, path: str, watch: bool) -> None: ...

class GetChildren2Response:
    children: list[str]
    stat: Stat

class GetChildren2Request(Request[GetChildren2Response]):
    def __init__(self, *, path: str, watch: bool) -> None: ...

class Create2Response:
    path: str
    stat: Stat

class Create2Request(Request[Create2Response]):
    def __init__(self, *, path: str, data: bytes, acl: list[ACL]) -> None: ...
    def set_flags(self, ephemeral: bool = False, sequential: bool = False, container: bool = False) -> None: ...

class SetDataResponse:
    stat: Stat

class SetDataRequest(Request[SetDataResponse]):
    def __init__(self, *, path: str, data: bytes, version: int) -> None: ...

class DeleteRequest(Request[object]):
    def __init__(self, *, path: str, version: int) -> None: ...

class CheckVersionRequest(Request[object]):
    def __init__(self, *, path: str, version: int) -> None: ...

class TransactionResponse:
    responses: list[object]

class TransactionRequest(Request[TransactionResponse]):
    def __init__(self) -> None: ...
    def add(self, request: Request[object]) -> None: ...

class GetACLResponse:
    acl: list[ACL]
    stat: Stat

class GetACLRequest(Request[GetACLResponse]):
    def __init__(self, *, path: str) -> None: ...

class SetACLRequest(Request[object]):
    def __init__(self, *, path: str, acl: list[ACL], version: int) -> None: ...

class WatchEvent:
    type: int
    state: int
    path: str
