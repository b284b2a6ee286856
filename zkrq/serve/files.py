"""Give browsers the files of the page, which are read once: anybody may ask for them, again and again."""

from __future__ import annotations

import hashlib
from mimetypes import guess_type
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request


class Files:
    """The files of a folder, in memory."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: _File(path) for path in folder.iterdir()}

    async def give(self, request: Request) -> Response:
        """Return the file that the path names, unless the browser has it."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.tag}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)


class _File:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.kind = guess_type(path.name)[0] or "application/octet-stream"
        self.tag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'
