"""The scripts as a library with other values for some of their constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from zkrq.protocol.scripts import SCRIPTS, Script, assemble, read_files


@cache
def scripts_with(limits: tuple[tuple[str, int | str], ...]) -> Mapping[str, Script]:
    """Return the scripts with other values for some of their limits."""
    return with_constants({name: str(value) for name, value in limits}) if limits else SCRIPTS


def with_constants(values: Mapping[str, str]) -> Mapping[str, Script]:
    """Return the scripts of a library in which constants have other values."""
    files, missing = read_files(), dict(values)
    for file, text in files.items():
        for name, value in values.items():
            text, count = re.subn(
                rf"^( *local {name} =) [^-\n]*?( *(?:--.*)?)$", rf"\1 {value}\2", text, flags=re.MULTILINE
            )
            if count:
                missing.pop(name, None)
        files[file] = text
    assert not missing, f"constants that no file has in a line of its own: {missing}"
    return assemble(files)


def with_lines(lines: Mapping[str, str]) -> Mapping[str, Script]:
    """Return the scripts of a library in which other lines stand in place of some."""
    files = read_files()
    for old, new in lines.items():
        assert sum(text.count(old) for text in files.values()) == 1, f"{old!r} does not stand in one place"
        files = {name: text.replace(old, new) for name, text in files.items()}
    return assemble(files)
