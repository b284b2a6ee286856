from collections.abc import Mapping

class HttpRequest:
    POST: Mapping[str, str]

class HttpResponse:
    status_code: int
    def __init__(self, content: str = ..., *, status: int = ...) -> None: ...
