"""Real databases: SQLite in a file, and a private PostgreSQL where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import sqlalchemy as sa

from zkrq.outbox.sqlalchemy import define_tables

SECONDS = 120.0
"""Seconds for one command of PostgreSQL."""


def find_postgresql() -> Path | None:
    """Return the folder of PostgreSQL's programs, None if it is not installed."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)  # where Debian hides them


@pytest.fixture(scope="session")
def postgresql() -> Generator[str, None, None]:
    """The URL of a private PostgreSQL, which listens on a socket in its folder alone."""
    pytest.importorskip("psycopg")
    programs = find_postgresql()
    if programs is None:
        pytest.skip("not installed: postgresql")
    user = None  # it does not run as root
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("there is no user postgres to run it as")
    folder = tempfile.mkdtemp(prefix="zkrq-postgres-")
    if user:
        shutil.chown(folder, user)

    def run(*words: str) -> None:
        subprocess.run(words, user=user, check=True, capture_output=True, timeout=SECONDS, cwd=folder)

    data = f"{folder}/data"
    run(f"{programs}/initdb", "-D", data, "--auth=trust", "--username=zkrq", "--no-sync")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    run(f"{programs}/pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
    try:
        yield f"postgresql+psycopg://zkrq@/postgres?host={folder}"
    finally:
        run(f"{programs}/pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgresql")


@pytest.fixture
def engine(url: str) -> Generator[sa.Engine, None, None]:
    """A database with the two tables and one of the application."""
    engine = sa.create_engine(url)
    metadata = sa.MetaData()
    define_tables(metadata)
    sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("sent", sa.Integer))
    metadata.create_all(engine)
    yield engine
    metadata.drop_all(engine)
    engine.dispose()
