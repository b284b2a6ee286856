"""The files below examples/deploy fit the command line: flags, variables, probes, and time to drain."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from tests.integration.deployed import DRAIN, check_variables, parse
from zkrq.client.environment import VARIABLES

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_time_to_drain(unit: Path) -> None:
    parser = ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read_string(unit.read_text())
    service = parser["Service"]
    command = parse(shlex.split(service["ExecStart"]))
    assert float(service["TimeoutStopSec"]) > command.grace + DRAIN
    assert service["RestartPreventExitStatus"] == "2"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_the_unit(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text().replace("/srv/shop/.venv/bin/zkrq", "/bin/true")  # which is not on this machine
    copy = tmp_path / unit.name
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not complaints


def test_the_environment_has_variables_that_exist() -> None:
    lines = [line for line in (FOLDER / "zkrq.env").read_text().splitlines() if line and not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines)
    check_variables(set(variables))
    for name, text in variables.items():
        if (setting := VARIABLES.get(name.removeprefix("ZKRQ_").lower())) and "tls" not in name.lower():
            setting.check(setting.read(text))


def test_kubernetes_asks_probes_that_are_there() -> None:
    (deployment,) = (each for each in documents() if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command = parse(container["args"])
    (port,) = container["ports"]
    assert str(command.probes).endswith(f"{port['containerPort']}")
    assert pod["terminationGracePeriodSeconds"] > command.grace + DRAIN
    probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
    assert probes == [{"path": path, "port": port["name"]} for path in ("/livez", "/readyz")]


def test_kubernetes_gives_settings_that_exist() -> None:
    (settings,) = (each["data"] for each in documents() if each["kind"] == "ConfigMap")
    check_variables(set(settings))
    for each in documents():
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            parse(container["args"])
            assert container["envFrom"] == [{"configMapRef": {"name": "shop-queues"}}]
            check_variables({variable["name"] for variable in container.get("env", ())})
