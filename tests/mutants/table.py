"""All mutants.  Each is a line, its replacement, the purpose of the line, and the test that must find the mistake."""

from __future__ import annotations

from tests.mutants import (
    of_access,
    of_claims,
    of_flow_clients,
    of_flows,
    of_limits,
    of_pushes,
    of_replication,
    of_saves,
    of_scripts,
    of_shards,
    of_views,
)
from tests.mutants.trial import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *of_scripts.MUTANTS,
    *of_shards.MUTANTS,
    *of_limits.MUTANTS,
    *of_claims.MUTANTS,
    *of_pushes.MUTANTS,
    *of_views.MUTANTS,
    *of_replication.MUTANTS,
    *of_access.MUTANTS,
    *of_flows.MUTANTS,
    *of_flow_clients.MUTANTS,
    *of_saves.MUTANTS,
)
