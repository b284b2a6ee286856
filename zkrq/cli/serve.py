"""Define the command ``serve``: the HTTP API and the page."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path

from zkrq.base.checks import check_count, check_duration, check_posix
from zkrq.base.errors import ConfigError
from zkrq.base.retry import Retry
from zkrq.cli.command import Command, look_at, open_cluster
from zkrq.cli.flags import Flag, duration
from zkrq.cli.worker import LOGGING, logging_of
from zkrq.process.program import run_until_signal

TOKEN = "ZKRQ_SERVE_TOKEN"  # noqa: S105 (the name of a variable)


def _serve(args: Namespace) -> int:
    check_posix("`zkrq serve`")
    try:
        from zkrq.serve.program import Options, start
    except ImportError as error:
        raise ConfigError(f"`zkrq serve` needs {error.name}: pip install 'zkrq[web]'") from error
    if bool(args.certificate) != bool(args.key):
        raise ConfigError("--certificate and --key are given together")
    options = Options(
        host=args.host,
        port=check_count("--port", args.port, least=0, most=65535),
        hosts=_names(args.hosts),
        tokens=read_tokens(args.token_file),
        readers=read_tokens(args.read_token_file, ""),
        administrators=read_tokens(args.admin_token_file, ""),
        read_only=args.read_only,
        retry=Retry(max_attempts=args.max_attempts or None),
        grace=check_duration("--grace", args.grace),
        certificate=args.certificate,
        key=args.key,
    )
    options.policy()  # wrong settings are reported before anything is connected
    handler, level = logging_of(args)
    logging.basicConfig(level=level, handlers=[handler])
    return run_until_signal(start(look_at(args) if args.read_only else open_cluster(args), options))


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def read_tokens(path: Path | None, variable: str = TOKEN) -> tuple[str, ...]:
    """Return the tokens of the file, one on each line, or those of the variable (empty: of none).

    Raises ``ConfigError``.
    """
    text = os.environ.get(variable, "")
    if path is not None:
        if text:
            raise ConfigError(f"{variable} and a file with tokens are both given: leave one of them out")
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the file with the token cannot be read: {error}") from error
        if not text.strip():
            raise ConfigError(f"{path} has no token")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


COMMANDS = (
    Command(
        "serve",
        "serve the HTTP API, for programs in other languages, and a page for people",
        _serve,
        (
            Flag("host", "the address to listen on; one that other machines reach needs a token", str, "127.0.0.1"),
            Flag("port", "0: any free one", int, 8080),
            Flag("hosts", "further names by which it is asked, as those of a proxy: name,name", str, "", "NAMES"),
            Flag(
                "token-file",
                f"file with the token that requests must carry, several while one is replaced; or {TOKEN} has it",
                Path,
                None,
                "FILE",
            ),
            Flag("read-token-file", "file with tokens whose holders only see", Path, None, "FILE"),
            Flag("admin-token-file", "file with tokens whose holders add and remove servers, too", Path, None, "FILE"),
            Flag("read-only", "refuse whatever changes anything", bool),
            Flag("max-attempts", "deliveries after which an item becomes a dead letter; 0: no limit", int, 20, "N"),
            duration("grace", "that clients have to settle their claims after a signal", 30.0),
            Flag("certificate", "PEM file, for HTTPS", Path, None, "FILE"),
            Flag("key", "PEM file with its key", Path, None, "FILE"),
            *LOGGING,
        ),
        program=True,
    ),
)
