"""The chart, checked and rendered by Helm itself, and checked by the schemas of Kubernetes.

What Helm does with a cluster (hooks, upgrades, rollbacks) is not tried here.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.integration.deployed import DRAIN, check_variables, parse
from tests.release.borrowed import borrow
from zkrq.base.version import __version__
from zkrq.client.environment import VARIABLES, read_servers

ROOT = Path(__file__).parents[2]
CHART = ROOT / "chart"
SECONDS = 120
KUBERNETES = "1.31"

Values = dict[str, Any]


def by_helm(values: Values) -> dict[str, Any]:
    """Return what Helm makes of the chart with these values."""
    library = borrow("helm-python-sdk", "0.2.2")
    request = {"chart": str(CHART), "values": values, "name": "shop", "namespace": "default"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("by_helm.py"))],
        env={**os.environ, "PYTHONPATH": str(library)},
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def render() -> Callable[[Values], list[Any]]:
    """Return what renders the whole chart with changed values, as documents."""

    @cache
    def rendered(values: str) -> str:
        texts: dict[str, str] = by_helm(json.loads(values))["rendered"]
        assert not [name for name, text in texts.items() if "<no value>" in text]
        return "\n---\n".join(texts.values())

    return lambda values: [each for each in yaml.safe_load_all(rendered(json.dumps(values))) if each]


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_lint_warns_of_nothing(variant: str) -> None:
    findings = by_helm(VARIANTS[variant])["findings"]
    assert findings == [[1, "Chart.yaml", "icon is recommended"]]


def test_helm_refuses_a_mistake() -> None:
    assert "additional properties 'replica' not allowed" in by_helm(changed(worker={"replica": 3}))["refused"]


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


def test_other_settings_make_other_pods(render: Callable[[Values], list[Any]]) -> None:
    """They are read at the start only."""

    def checksums(values: Values) -> set[str]:
        documents = render(values)
        pods = [of(documents, "Deployment", name)["spec"]["template"] for name in ("worker", "page")]
        return {pod["metadata"]["annotations"]["checksum/settings"] for pod in pods}

    former = checksums(VARIANTS["everything"])
    assert len(former) == 1
    assert (
        checksums(changed(keda={"enabled": True}, page={"enabled": True, "replicas": 2}, secret="passwords")) == former
    )
    assert not checksums(changed(page={"enabled": True}, secret="passwords", redis="a=redis://a")) & former


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
