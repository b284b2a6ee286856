"""Which suite a test is in: the table ``PLACES``, the list ``slow.txt``, and the mark ``chaos`` for what is ``long``.

``pytest --suite NAME`` runs one of them (``conftest.py``).  ``make quick`` is for every change, ``make test`` before a
commit (quick is a part of it), ``make check`` is the rest of what has to pass, ``make long`` is what no run needs.
A place is chosen by processor time (``python -m pytest -p tests.costs``) and by what a test finds that no cheaper one
does; whatever depends on timing under load is in ``check`` or ``long``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent

QUICK, TEST, CHECK, LONG = "quick", "test", "check", "long"

RUNS: Mapping[str, frozenset[str]] = {
    QUICK: frozenset({QUICK}),
    TEST: frozenset({QUICK, TEST}),
    CHECK: frozenset({CHECK}),
    LONG: frozenset({LONG}),
}
"""What ``--suite NAME`` runs."""

PLACES: Mapping[str, str] = {
    "advice": CHECK,
    "advice/test_every_step.py": TEST,
    "advice/test_replacing.py::test_a_server_that_was_restarted_alone": TEST,
    "behaviour": QUICK,
    "behaviour[real]": CHECK,
    "chaos": CHECK,
    "chaos/test_chaos.py::test_a_fault_under_load[loaded]": TEST,
    "chaos/test_checker.py": TEST,
    "chaos/test_flows.py": TEST,
    "chaos/test_turns.py": TEST,
    "coordination": CHECK,
    "coordination/test_coordinators.py": TEST,
    "coordination/test_hosts.py": TEST,
    "coordination/test_zookeeper_faults.py::test_leader_killed": TEST,
    "faults": CHECK,
    "faults/test_clients.py::test_a_claim_that_was_dropped_comes_back": TEST,
    "faults/test_clients.py::test_a_refused_ack_does_not_cancel_the_loop_around_it": TEST,
    "faults/test_clients.py::test_what_was_decided_before_a_retry_reaches_every_server": TEST,
    "faults/test_damage.py::test_everything_else_is_read_claimed_and_closed": TEST,
    "faults/test_disaster.py::test_a_namespace_that_exists_is_not_founded_again": TEST,
    "faults/test_disaster.py::test_a_server_that_has_seen_more_is_named_as_well": TEST,
    "faults/test_disaster.py::test_a_server_that_was_away_at_one_refounding_is_no_part_of_the_next": TEST,
    "faults/test_disaster.py::test_what_does_not_belong_together_is_refused": TEST,
    "faults/test_limits.py::test_the_limit_of_each_group_holds_while_the_primary_is_killed": TEST,
    "faults/test_looking.py::test_a_client_that_only_looks_is_not_let_change_anything": TEST,
    "faults/test_recovery.py::test_a_client_that_comes_after_a_power_cut_recovers": TEST,
    "faults/test_redis.py::test_a_server_is_killed_under_load": TEST,
    "faults/test_repair.py::test_what_was_removed_stays_removed": TEST,
    "faults/test_sessions.py::test_a_killed_consumers_claims_are_delivered_again": TEST,
    "faults/test_sessions.py::test_a_live_consumer_that_was_declared_dead_twice": TEST,
    "faults/test_sessions.py::test_what_a_dead_consumer_had_decided_on_the_primary_alone": TEST,
    "frameworks": CHECK,
    "frameworks/test_celery_results.py::test_results_of_every_kind": TEST,
    "frameworks/test_frameworks_page.py::test_fastapi": TEST,
    "frameworks/test_kombu.py": TEST,
    "frameworks/test_kombu_settings.py": TEST,
    "frameworks/test_kombu_settings.py::test_settings_name_the_transport_without_importing_anything": CHECK,
    "frameworks/test_kombu_settings.py::test_settings_need_no_import": CHECK,
    "frameworks/test_kombu_settings.py::test_settings_of_django_need_no_import": CHECK,
    "frameworks/test_taskiq.py": TEST,
    "frameworks/test_taskiq_results.py": TEST,
    "integration": CHECK,
    "integration/test_cli.py::test_push_stats_pop": TEST,
    "integration/test_cli_administration.py::test_dead_letters": TEST,
    "integration/test_cli_administration.py::test_finding": TEST,
    "integration/test_cli_administration.py::test_looking_and_administering": TEST,
    "integration/test_cli_administration.py::test_servers": TEST,
    "integration/test_cli_moving.py::test_export_and_import": TEST,
    "integration/test_connect.py": TEST,
    "integration/test_deploy.py": TEST,
    "integration/test_documentation.py::test_calls_fit_the_real_signatures": TEST,
    "integration/test_foreign_loops.py": TEST,
    "integration/test_item_costs.py::test_no_item_of_a_lone_worker_needs_more_script_calls_than_it_did": TEST,
    "integration/test_levels.py": TEST,
    "integration/test_metrics.py": TEST,
    "integration/test_moments.py::test_a_server_dies_around_the_moment": TEST,
    "integration/test_neighbours.py": TEST,
    "integration/test_pool.py::test_a_process_that_dies_fails_its_item": TEST,
    "integration/test_pool.py::test_a_time_limit_is_hard": TEST,
    "integration/test_pool_programs.py::test_nothing_outlives_a_parent_that_is_killed": TEST,
    "integration/test_primary_killed.py::test_deletion_meets_what_a_dead_caller_had_decided": TEST,
    "integration/test_primary_killed.py::test_duplicate_is_told_only_of_what_every_server_has": TEST,
    "integration/test_probes.py::test_a_request_has_one_deadline_however_slowly_it_arrives": TEST,
    "integration/test_recurring.py": TEST,
    "integration/test_serve.py::test_an_ack_leaves_a_result_and_progress_is_reported": TEST,
    "integration/test_serve.py::test_what_is_pushed_over_http_is_an_item_like_any_other": TEST,
    "integration/test_serve_bounds.py::test_a_token_is_asked_for_and_a_server_may_only_show": TEST,
    "integration/test_serve_connections.py::test_a_connection_without_a_whole_head_is_closed": TEST,
    "integration/test_serve_connections.py::test_descriptors_are_left_for_the_servers": TEST,
    "integration/test_serve_items.py::test_each_state_has_its_items": TEST,
    "integration/test_serve_page.py::test_the_page_lives_and_its_buttons_work": TEST,
    "integration/test_serve_page.py::test_without_scripts_the_server_asks_before_letters_go": TEST,
    "integration/test_serve_schema.py::test_a_client_that_is_generated_is_pleasant_to_use": TEST,
    "integration/test_sync.py::test_an_error_in_the_body_settles_the_claim": TEST,
    "integration/test_sync.py::test_anything_that_is_raised_is_one_failure_and_ends_no_loop": TEST,
    "integration/test_sync.py::test_threads_share_a_cluster_that_the_first_one_opens": TEST,
    "integration/test_top.py": TEST,
    "integration/test_traces.py": TEST,
    "integration/test_worker.py": TEST,
    "integration/test_worker.py::test_under_load_queues_are_served_by_weight": CHECK,
    "integration/test_worker_process.py::test_a_signal_drains": TEST,
    "lua": QUICK,
    "model": TEST,
    "model/test_few_schedules.py": QUICK,
    "model/test_flows.py::test_no_promise_is_broken_with_flows_in_flows": CHECK,
    "model/test_flows.py::test_no_promise_is_broken_with_flows_of_two_queues": CHECK,
    "model/test_flows.py::test_no_promise_is_broken_with_members_that_wait": CHECK,
    "model/test_homing.py": CHECK,
    "model/test_model.py::test_a_client_that_others_contradict_does_not_evict_again": CHECK,
    "model/test_model.py::test_no_promise_is_broken_over_shards": CHECK,
    "model/test_model.py::test_shards_came_and_went": CHECK,
    "model/test_model.py::test_what_was_saved_is_given_to_every_later_delivery[turns]": CHECK,
    "model/test_model.py::test_who_may_evict": CHECK,
    "model/test_orders.py::test_an_order_that_is_declared_meanwhile_is_kept_by_producers_that_do_not_know_it": CHECK,
    "model/test_scripts.py::test_model_and_scripts_differ_without_a_rule": CHECK,
    "mutants": TEST,
    "mutants/test_mutants.py::test_a_quick_mutant_is_killed": CHECK,
    "outbox": CHECK,
    "outbox/test_outbox.py": TEST,
    "outbox/test_outbox.py::test_a_row_may_wait_for_longer_than_an_id_of_zkrqs_own_is_taken": CHECK,
    "outbox/test_outbox.py::test_it_forwards_by_itself_while_servers_and_the_database_come_and_go": CHECK,
    "release": CHECK,
    "release/test_release.py": TEST,
    "release/test_setup.py": TEST,
    "security": CHECK,
    "security/test_fuzz.py": TEST,
    "security/test_rights.py::test_a_library_that_an_administrator_has_loaded_is_enough": TEST,
    "security/test_secrets.py": TEST,
    "security/test_tls.py::test_a_clients_certificate_expires_while_it_works": TEST,
    "security/test_tls.py::test_redis_refuses_a_certificate": TEST,
    "security/test_tls.py::test_the_certificate_of_redis_is_of_another_host": TEST,
    "security/test_znode_contents.py::test_a_view": TEST,
    "security/test_znode_rights.py::test_a_namespace_without_auth_gets_it": TEST,
    "simulation": TEST,
    "simulation/test_bounds.py::test_what_a_call_touches_does_not_grow": CHECK,
    "simulation/test_isolation.py::test_a_call_finds_nothing_of_the_one_before[every fifth pair]": CHECK,
    "simulation/test_one_seed.py": QUICK,
    "simulation/test_simulation.py::test_only_the_map_of_the_shards_changes_and_no_push_fails": CHECK,
    "simulation/test_simulation.py::test_two_releases_share_a_namespace_in_more_seeds": CHECK,
    "simulation/test_simulation.py::test_what_is_nobodys_end[away]": CHECK,
    "simulation/test_simulation.py::test_what_is_nobodys_end_in_more_seeds": CHECK,
    "simulation/test_simulation.py::test_what_was_promised_is_kept_in_more_seeds": CHECK,
    "simulation/test_variants.py::test_broken_variants_are_found_out": CHECK,
    "unit": QUICK,
}
"""Suites by folder, file (``folder/file.py``) or test (``folder/file.py::test``); the longest place wins.  With
``[word]`` behind it, only of the tests that have this word among their parameters: ``behaviour[real]`` is those on real
servers."""

SLOW = HERE / "slow.txt"
"""Tests of folders in ``quick`` that take too long for it: a suite and a place a line."""


def read_slow() -> dict[str, str]:
    """Return the places of ``slow.txt`` with their suites."""
    lines = [line.split(maxsplit=1) for line in SLOW.read_text().splitlines() if line and not line.startswith("#")]
    return {place: suite for suite, place in lines}


_places = {**PLACES, **read_slow()}


def _above(path: str) -> Iterator[str]:
    """Yield the path and the folders that it is in, the longest first."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def suite(test: str) -> str:
    """Return the suite of a test, given by its id; one that is marked ``chaos`` is in ``long`` instead.

    A few lookups, however long the table is.  Raises ``LookupError`` for a test whose folder has no place.
    """
    named, _, parameters = test.removeprefix("tests/").partition("[")
    words = parameters.removesuffix("]").split("-") if parameters else []
    file, colons, _ = named.partition("::")
    for place in [named, *_above(file)] if colons else _above(file):
        for word in words:
            if found := _places.get(f"{place}[{word}]"):
                return found
        if found := _places.get(place):
            return found
    raise LookupError(f"{test} is in no suite: give it a place in tests/suites.py")


def suites(path: str) -> frozenset[str]:
    """Return the suites of the tests below a folder or in a file ("" for all), but for those marked ``chaos``."""
    path = path.removeprefix("tests/")
    below, of_words = _ahead()
    found = set(below.get(path, ()))
    for place in _above(path):
        found |= of_words.get(place, set())
        if suite := _places.get(place):
            found.add(suite)
            break
    return frozenset(found)


@cache
def _ahead() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the suites of the places below each path, and those of the places that are the path with a word behind."""
    below, of_words = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for place, found in _places.items():
        named, bracket, _ = place.partition("[")
        file, colons, _ = named.partition("::")
        if bracket:
            of_words[named].add(found)
        for path in _above(file if colons else file.rpartition("/")[0]):
            below[path].add(found)
        below[""].add(found)
    return below, of_words


def may_be_long(file: Path) -> bool:
    """Whether some test of a file may be marked ``chaos``: by itself, or by a fixture of its folder."""
    return any("mark.chaos" in one.read_text() for one in (file, file.with_name("conftest.py")) if one.exists())
