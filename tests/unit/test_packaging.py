"""pyproject.toml: extras, least versions, and a README without dead links on the page of a package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.environments import sections
from tests.every import every

ROOT = Path(__file__).parents[2]
CONFIGURATION: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_the_extra_all_has_every_other() -> None:
    (all_of_them,) = EXTRAS["all"]
    assert all_of_them == f"zkrq[{','.join(name for name in EXTRAS if name != 'all')}]"


@every("extra", EXTRAS)
def test_the_requirements_name_each_extra(extra: str) -> None:
    assert f"extra `{extra}` |" in (ROOT / "docs" / "requirements.md").read_text()


def test_each_dependency_has_a_least_version_to_test() -> None:
    needed = [*PROJECT["dependencies"], *(each for name in EXTRAS if name != "all" for each in EXTRAS[name])]
    assert len(needed) > 8
    assert [each for each in needed if not re.match(r"[\w-]+(\[[\w,]+\])?>=[\w.]+", each)] == []


def test_the_readme_of_the_package_has_no_links_to_files() -> None:
    hook = CONFIGURATION["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text()
    assert "](docs/guide.md)" in text
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert "then the guide, workers and deploying." in text


@every(
    ("module", "library", "extra"),
    [
        ("zkrq.prometheus", "prometheus_client", "prometheus"),
        ("zkrq.opentelemetry", "opentelemetry", "opentelemetry"),
        ("zkrq.kombu", "kombu", "celery"),
        ("zkrq.taskiq", "taskiq", "taskiq"),
    ],
)
def test_a_module_without_its_extra_names_the_command(module: str, library: str, extra: str) -> None:
    """As a user meets it: in a process in which the library cannot be imported."""
    code = f"import sys; sys.modules[{library!r}] = None; import {module}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert f"pip install 'zkrq[{extra}]'" in told.stderr.splitlines()[-1]


INSTALLED = {canonicalize_name(each.name): each.requires or [] for each in metadata.distributions()}


@every("python", ["3.11.0", "3.11.2", "3.11.3", "3.12.0", "3.13.0", "3.14.0"])
def test_the_pins_of_the_peers_have_what_this_python_needs(python: str) -> None:
    """Pins made on one Python lack what only another one needs.  What a package needs there is read from the release of
    it that is installed here, which may be another one than the pinned."""
    of_python: dict[str, str] = {"python_full_version": python, "python_version": python.rpartition(".")[0]}

    def holds(requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({**of_python, "extra": ""})

    seen = set[str]()
    for name, lines in sections().items():
        pinned = {canonicalize_name(pin.name) for pin in map(Requirement, lines) if holds(pin)}
        for package in pinned & INSTALLED.keys():
            needs = [need for need in map(Requirement, INSTALLED[package]) if "python_" in str(need.marker)]
            seen.update(need.name for need in needs)
            missing = [str(need) for need in needs if holds(need) and canonicalize_name(need.name) not in pinned]
            assert missing == [], f"{package} in [{name}] of benchmarks/peers.txt"
    assert "async-timeout" in seen
