"""Lint and render a chart by Helm itself, in a process that has its library in PYTHONPATH: JSON in, JSON out.

In: {chart: folder, values, name, namespace}.  Out: {findings: [[severity, path, text]], rendered: {name: text}}, or
{refused: text} where Helm refuses the values.  Severities are those of `helm lint`: 1 information, 2 warning, 3 error.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

asked: dict[str, Any] = json.load(sys.stdin)
helm: Any = importlib.import_module("helm_python")
told: dict[str, Any]
with helm.Chart.load(asked["chart"]) as chart:
    try:
        chart.validate_schema(asked["values"])
        rendered = chart.render(asked["values"], name=asked["name"], namespace=asked["namespace"])
        found = helm.lint(asked["chart"])["messages"]
        findings = [[each["severity"], each["path"], each["error"]] for each in found]
        told = {"rendered": rendered, "findings": findings}
    except helm.HelmValuesError as error:
        told = {"refused": str(error)}
json.dump(told, sys.stdout)
