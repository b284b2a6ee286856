"""Say of every next step that no test of this folder carries out which other test does, or why none can.

A row is found by the file that names the step and a part of its text; where several parts fit, the longest counts.
"""

from __future__ import annotations

Row = tuple[str, str]
"""The file of ``zkrq`` or ``docs``, and a part of the text."""

ELSEWHERE: dict[Row, str] = {
    (
        "client/examining/rules.py",
        "correct its name, or let this host's DNS",
    ): "faults/test_names.py::test_a_client_that_has_never_resolved_a_name",
    (
        "client/examining/rules.py",
        "look at the DNS servers of this host",
    ): "faults/test_names.py::test_a_client_that_has_never_resolved_a_name",
    (
        "replication/causes.py",
        "{}, then retry",
    ): "advice/test_operation.py::test_one_more_server_where_too_few_are_in_sync",
    ("deploying.md", "    zkrq servers list"): "integration/test_cli.py::test_servers",
    ("deploying.md", "called by host and port"): "integration/test_cli.py::test_servers",
    (
        "base/deprecation.py",
        "goes in {}: use {}",
    ): "unit/test_surface.py::test_a_deprecated_name_works_and_warns_with_what_to_use",
    (
        "base/errors.py",
        "call it again",
    ): "behaviour/test_everywhere.py::test_what_was_done_on_one_shard_is_not_told_as_if_nothing_had_happened",
    (
        "base/errors.py",
        "no longer holds; stop working on it",
    ): "behaviour/test_items.py::test_cancel_stops_the_body_of_the_holder",
    ("base/errors.py", "retry later"): "faults/test_repair.py::test_pushes_go_on_once_one_of_two_lost_servers_is_back",
    ("base/events.py", "(`zkrq damaged drop`)"): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "base/events.py",
        "(`zkrq damaged list {}`)",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    ("base/retry.py", "retry later"): "behaviour/test_queue.py::test_handlers_say_what_they_want",
    (
        "cli/conditions.py",
        "there may be more: repeat the command",
    ): "integration/test_cli.py::test_what_was_found_is_cancelled",
    (
        "cli/damaged.py",
        "as `zkrq damaged list` prints it",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    ("cli/items.py", "`zkrq resume`"): "integration/test_cli.py::test_looking_and_administering",
    ("cli/moving.py", "--dead pushes them"): "integration/test_cli.py::test_export_and_import",
    ("cli/moving.py", "import pushes a copy of each"): "integration/test_cli.py::test_export_and_import",
    ("cli/moving.py", "import the same lines again"): "integration/test_cli.py::test_export_and_import",
    ("cli/shards.py", "`zkrq shards list` shows what is left in it"): "integration/test_cli.py::test_shards",
    (
        "cli/upgrade.py",
        "`zkrq upgrade --check --wait 60` removes them",
    ): "integration/test_levels.py::test_the_command_line_tells_of_programs_that_no_list_has",
    (
        "cli/upgrade.py",
        "look for it",
    ): "integration/test_levels.py::test_the_command_line_tells_of_programs_that_no_list_has",
    (
        "client/damaged.py",
        "push it again, then drop it",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "client/damaged.py",
        "push that under another id, then drop the entry",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "client/declaring.py",
        "all the time; repeat",
    ): "behaviour/test_homed.py::test_two_change_the_limits_at_the_same_time",
    (
        "client/declaring.py",
        "repeat this when consumers without the option have emptied those",
    ): "behaviour/test_homed.py::test_what_was_elsewhere_before_is_consumed_first",
    (
        "client/everywhere.py",
        "all the time; repeat",
    ): "behaviour/test_everywhere.py::test_of_a_pause_and_a_resume_at_the_same_time_one_holds_on_all_shards",
    (
        "client/examining/rules.py",
        "`zkrq damaged list` names them",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "client/examining/rules.py",
        "end clients of this machine, or raise maxClientCnxns",
    ): "coordination/test_zookeeper_faults.py::test_a_server_without_room_for_this_address_is_told_from_a_silent_one",
    (
        "client/examining/rules.py",
        "make room on its disk",
    ): "faults/test_redis.py::test_no_server_can_write_to_its_disk",
    (
        "client/examining/rules.py",
        "replace them by the release of the others, or end them",
    ): "integration/test_levels.py::test_a_client_that_does_not_speak_the_level_writes_nothing_more",
    (
        "client/examining/rules.py",
        "replace them, then {}",
    ): "integration/test_levels.py::test_the_command_line_says_who_is_too_old_and_raises_the_level",
    (
        "client/examining/rules.py",
        "start it, or open the way to it",
    ): "faults/test_redis.py::test_a_server_that_was_restarted_comes_back",
    (
        "client/examining/rules.py",
        "synchronise it (chrony)",
    ): "faults/test_clocks.py::test_the_clock_of_one_of_three_servers_is_set",
    (
        "client/examining/rules.py",
        "the next client that connects merges it",
    ): "integration/test_doctor.py::test_all_servers_were_restarted",
    (
        "client/resharding.py",
        "add it again, or remove it",
    ): "behaviour/test_shards.py::test_a_shard_whose_servers_cannot_be_used_is_given_up",
    (
        "client/resharding.py",
        "add the shard again",
    ): "behaviour/test_homed.py::test_a_shard_that_is_added_while_limits_are_declared",
    (
        "client/resharding.py",
        "call this again",
    ): "behaviour/test_shards.py::test_a_removal_ends_in_vain_if_its_shard_is_used_again",
    (
        "client/resharding.py",
        "give its servers as NAME=URL",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_where_there_are_two_shards",
    (
        "client/resharding.py",
        "remove it again, and then add it",
    ): "behaviour/test_resharding.py::test_a_shard_whose_removal_has_begun_is_not_used_again",
    (
        "client/schedule_store.py",
        "add them again, or remove them",
    ): "security/test_stored.py::test_a_damaged_schedule_stops_no_other",
    (
        "client/schedule_store.py",
        "at the same time: repeat it",
    ): "integration/test_schedules.py::test_two_operators_at_one_time",
    (
        "client/shard.py",
        "see `zkrq damaged list {}`",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "client/shards.py",
        "nothing was changed here, retry later",
    ): "behaviour/test_shards.py::test_several_clients_add_the_same_shard_at_once",
    (
        "client/shards.py",
        "see docs/disaster.md",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_where_there_are_two_shards",
    (
        "client/upgrading.py",
        "or have them refused with force=True (--force)",
    ): "integration/test_levels.py::test_the_level_is_not_raised_while_a_client_does_not_speak_it",
    (
        "consuming/leases.py",
        "was dropped without being settled",
    ): "behaviour/test_unentered.py::test_a_claim_that_was_dropped",
    (
        "consuming/leases.py",
        "was neither entered nor settled",
    ): "behaviour/test_unentered.py::test_a_claim_that_is_only_kept",
    (
        "coordination/zookeeper/coordinator.py",
        "a coordinator is used once; make a new one",
    ): "coordination/test_behaviour.py::test_before_the_start_and_after_the_end",
    (
        "coordination/zookeeper/coordinator.py",
        "end clients of this machine",
    ): "coordination/test_zookeeper_faults.py::test_a_server_without_room_for_this_address_is_told_from_a_silent_one",
    (
        "coordination/zookeeper/link.py",
        "it speaks TLS: give zookeeper_tls",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "coordination/zookeeper/link.py",
        "name its secureClientPort",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "coordination/zookeeper/link.py",
        "show one that it trusts",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "coordination/zookeeper/link.py",
        "trust its authority",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "coordination/zookeeper/session.py",
        "cannot be used: {}; correct them",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    ("deploying.md", "    systemctl enable --now"): "integration/test_deploy.py::test_systemd_reads_the_unit",
    (
        "deploying.md",
        "    systemctl restart redis",
    ): "faults/test_rolling_restart.py::test_nothing_is_lost_and_nothing_waits_for_a_time_out",
    (
        "disaster.md",
        "**ZooKeeper altogether**",
    ): "faults/test_disaster.py::test_zookeeper_is_lost_altogether_while_clients_run",
    ("disaster.md", "- **None can**"): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    ("disaster.md", "- **Restore**"): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "disaster.md",
        "1. Make sure that it is lost",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_from_an_older_backup_while_clients_run",
    (
        "disaster.md",
        "1. Start every Redis server",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_from_an_older_backup_while_clients_run",
    (
        "disaster.md",
        "2. Start an empty ensemble",
    ): "faults/test_disaster.py::test_zookeeper_is_lost_altogether_while_clients_run",
    (
        "disaster.md",
        "3. With several shards, the same for each",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_where_there_are_two_shards",
    (
        "disaster.md",
        "4. Clients that were running go on",
    ): "faults/test_disaster.py::test_zookeeper_is_lost_altogether_while_clients_run",
    ("disaster.md", "4. Servers that were removed since the backup"): "integration/test_cli.py::test_servers",
    (
        "disaster.md",
        "except one disk, for good",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "disaster.md",
        "keep the output of `zkrq schedules list --json`",
    ): "integration/test_schedules.py::test_when_zookeeper_has_lost_it_running_code_declares_it_again",
    (
        "disaster.md",
        "then `zkrq damaged drop QUEUE ID`",
    ): "faults/test_damage.py::test_what_is_set_aside_is_restored_or_dropped",
    (
        "disaster.md",
        "what ZooKeeper stored since a backup",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_from_an_older_backup_while_clients_run",
    (
        "disaster.md",
        "zkrq servers add redis://10.0.0.14",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "disaster.md",
        "zkrq servers add redis://10.0.0.15",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "disaster.md",
        "zkrq servers recover redis-2 ",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "disaster.md",
        "zkrq servers remove redis-1",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "disaster.md",
        "zkrq servers remove redis-3",
    ): "faults/test_disaster.py::test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back",
    (
        "kombu/__init__.py",
        "name its queue, which `task_queues` binds",
    ): "frameworks/test_kombu.py::test_celery_sends_what_is_due_later",
    ("observability.md", "`ZkrqAbsent`"): "integration/test_worker_process.py::test_a_crashed_process_is_started_again",
    ("observability.md", "`ZkrqDeadLetters`"): "integration/test_cli.py::test_dead_letters",
    ("observability.md", "`ZkrqLoopBlocked`"): "integration/test_worker.py::test_handlers_of_all_kinds",
    (
        "observability.md",
        "`ZkrqNoAnswer`",
    ): "faults/test_recovery.py::test_all_are_killed_at_once_under_load_and_restarted",
    ("observability.md", "`ZkrqNothingIsClaimed`"): "integration/test_cli.py::test_looking_and_administering",
    ("observability.md", "`ZkrqPaused`"): "integration/test_cli.py::test_looking_and_administering",
    (
        "observability.md",
        "`ZkrqPushesFail`",
    ): "behaviour/test_observing.py::test_pushes_that_fail_are_counted_by_their_errors",
    ("observability.md", "`ZkrqServerFull`"): "faults/test_redis.py::test_a_full_server_refuses_pushes_and_drains",
    ("observability.md", "`ZkrqSession`"): "faults/test_sessions.py::test_work_goes_on_without_zookeeper",
    (
        "observability.md",
        "`ZkrqShardAway`",
    ): "faults/test_shards.py::test_a_shard_that_dies_stops_no_push_and_its_items_come_when_it_is_back",
    (
        "observability.md",
        "`ZkrqShardUnfinished`",
    ): "behaviour/test_resharding.py::test_what_an_operator_leaves_in_the_middle_another_one_ends",
    ("observability.md", "`ZkrqTrouble`"): "faults/test_access.py::test_a_password_is_rotated",
    (
        "observability.md",
        "zkrq worker jobs:worker --probes 9464",
    ): "integration/test_probes.py::test_one_port_answers_for_all_processes",
    ("process/supervisor.py", "--reload is for development"): "integration/test_worker_process.py::test_reload",
    (
        "producing/placement.py",
        "for which id {} was made",
    ): "behaviour/test_shards.py::test_a_closed_shard_takes_no_push_that_is_repeated",
    (
        "producing/placement.py",
        "is away; nothing was written, retry later",
    ): "faults/test_shards.py::test_a_shard_that_dies_stops_no_push_and_its_items_come_when_it_is_back",
    (
        "producing/placement.py",
        "the home of queue {}, is being removed",
    ): "faults/test_shards.py::test_the_map_changes_under_every_kind_of_push_and_each_returns",
    (
        "producing/placement.py",
        "write the register of its shard into the znode",
    ): "security/test_stored.py::test_a_home_that_cannot_be_read_stops_its_queue_alone",
    (
        "producing/pusher.py",
        "push again with the same ids",
    ): "faults/test_redis.py::test_two_of_three_servers_are_killed",
    (
        "producing/receipts.py",
        "push again with the same id",
    ): "faults/test_redis.py::test_two_of_three_servers_are_killed",
    (
        "protocol/clocks.py",
        "no majority agrees ({}): set them right",
    ): "faults/test_clocks.py::test_the_clock_of_one_of_two_servers_that_pushes_need_is_set",
    ("protocol/clocks.py", "set it right (chrony, NTP)"): "faults/test_clocks.py::test_the_clock_of_a_client_is_set",
    (
        "protocol/founding.py",
        "is being founded; retry",
    ): "integration/test_connect.py::test_a_misspelt_namespace_is_not_founded_by_who_only_uses_it",
    (
        "protocol/founding.py",
        "or others try as well; retry",
    ): "integration/test_connect.py::test_many_clients_found_a_namespace_at_the_same_time",
    ("protocol/founding.py", "set the clocks right"): "integration/test_connect.py::test_a_clients_clock_that_is_wrong",
    (
        "protocol/founding.py",
        "this client was given {}: give every client the same servers",
    ): "unit/test_founding.py::test_a_plan_of_another_client_is_carried_out",
    (
        "protocol/levels.py",
        "first run `zkrq upgrade --level {}`",
    ): "integration/test_levels.py::test_the_command_line_says_who_is_too_old_and_raises_the_level",
    (
        "protocol/levels.py",
        "install here the release of zkrq",
    ): "integration/test_levels.py::test_a_client_that_does_not_speak_the_level_writes_nothing_more",
    (
        "protocol/levels.py",
        "install zkrq {} or later here",
    ): "integration/test_levels.py::test_a_client_that_does_not_speak_the_level_writes_nothing_more",
    (
        "protocol/recovery.py",
        "go on without it",
    ): "faults/test_recovery.py::test_recovery_waits_for_every_server_unless_it_is_told_not_to",
    (
        "protocol/refounding.py",
        "belong to different deployments: name those of one",
    ): "faults/test_disaster.py::test_what_does_not_belong_together_is_refused",
    (
        "protocol/refounding.py",
        "name it as well",
    ): "faults/test_disaster.py::test_a_server_that_has_seen_more_is_named_as_well",
    (
        "protocol/refounding.py",
        "of namespace {}: name those of one",
    ): "faults/test_disaster.py::test_what_does_not_belong_together_is_refused",
    (
        "protocol/refounding.py",
        "recover its servers without --without-zookeeper",
    ): "integration/test_cli.py::test_servers_recover",
    (
        "protocol/refounding.py",
        "server {} holds the items of another deployment: go on without it",
    ): "faults/test_disaster.py::test_a_server_that_was_not_named_comes_back_by_catch_up",
    (
        "protocol/replies.py",
        "correct them; they are read for each connection",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "protocol/replies.py",
        "correct what redis_auth names",
    ): "security/test_passwords.py::test_a_file_that_is_missing_for_a_while",
    (
        "protocol/replies.py",
        "show one that the server trusts",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    ("protocol/replies.py", "trust its authority"): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "protocol/replies.py",
        "write redis:// instead of rediss://",
    ): "security/test_tls.py::test_one_of_three_is_written_wrongly",
    (
        "protocol/replies.py",
        "write rediss:// instead of redis://",
    ): "security/test_tls.py::test_what_an_error_says_lets_the_client_in",
    (
        "protocol/shards.py",
        "add it again",
    ): "behaviour/test_resharding.py::test_what_an_operator_leaves_in_the_middle_another_one_ends",
    (
        "protocol/shards.py",
        "drain it again",
    ): "behaviour/test_resharding.py::test_what_an_operator_leaves_in_the_middle_another_one_ends",
    (
        "protocol/shards.py",
        "remove those of another one",
    ): "behaviour/test_homed.py::test_no_more_queues_are_homed_than_a_map_should_hold",
    (
        "repair/roster.py",
        "was not taken over: {}; retry",
    ): "faults/test_repair.py::test_another_deployments_server_is_taken_only_by_force",
    (
        "replication/causes.py",
        "will be in sync soon; retry",
    ): "faults/test_repair.py::test_pushes_go_on_once_one_of_two_lost_servers_is_back",
    (
        "replication/membership.py",
        "`zkrq servers recover --older-zookeeper {}{}`",
    ): "faults/test_disaster.py::test_zookeeper_is_restored_from_an_older_backup_while_clients_run",
    ("runbook.md", "1. That process' log"): "integration/test_doctor.py::test_rights_that_are_missing",
    (
        "runbook.md",
        "1. The event `ClaimsLost`",
    ): "faults/test_sessions.py::test_a_session_that_ends_stops_its_handlers_and_the_next_one_goes_on",
    ("runbook.md", "1. The event `LoopBlocked` names"): "integration/test_worker.py::test_handlers_of_all_kinds",
    (
        "runbook.md",
        "1. The label `outcome`",
    ): "behaviour/test_observing.py::test_pushes_that_fail_are_counted_by_their_errors",
    ("runbook.md", "1. The supervisor's log"): "unit/test_program.py::test_the_page_of_workers_lists_the_exit_codes",
    (
        "runbook.md",
        "1. `zkrq consumers`: are there as many",
    ): "integration/test_cli.py::test_pop_waits_and_shows_up_among_the_consumers",
    (
        "runbook.md",
        "1. `zkrq consumers`: none",
    ): "integration/test_cli.py::test_pop_waits_and_shows_up_among_the_consumers",
    ("runbook.md", "1. `zkrq dead list QUEUE` shows the reasons"): "integration/test_cli.py::test_dead_letters",
    ("runbook.md", "1. `zkrq doctor` and the server's log"): "integration/test_doctor.py::test_a_server_that_is_down",
    (
        "runbook.md",
        "1. `zkrq doctor` asks each ZooKeeper server",
    ): "integration/test_doctor.py::test_zookeeper_without_a_quorum",
    (
        "runbook.md",
        "1. `zkrq doctor` names the servers that are out",
    ): "integration/test_doctor.py::test_a_server_that_is_down",
    (
        "runbook.md",
        "1. `zkrq doctor` says which server does not answer",
    ): "integration/test_doctor.py::test_the_command",
    ("runbook.md", "1. `zkrq resume QUEUE`"): "integration/test_cli.py::test_looking_and_administering",
    ("runbook.md", "1. `zkrq shards list` and `zkrq doctor` name"): "integration/test_cli.py::test_shards",
    ("runbook.md", "1. `zkrq shards list` says in which step"): "integration/test_cli.py::test_shards",
    ("runbook.md", "1. `zkrq stats` shows which queue holds"): "integration/test_cli.py::test_push_stats_pop",
    (
        "runbook.md",
        "2. If all were restarted: start every one",
    ): "faults/test_recovery.py::test_all_are_killed_at_once_under_load_and_restarted",
    ("runbook.md", "2. If it has to be looked at in peace"): "integration/test_cli.py::test_servers",
    ("runbook.md", "2. Make such a handler a plain function"): "integration/test_worker.py::test_handlers_of_all_kinds",
    (
        "runbook.md",
        "2. Passwords from files are read again",
    ): "security/test_passwords.py::test_a_password_is_changed_under_load",
    (
        "runbook.md",
        "2. Repeat the command that was left",
    ): "behaviour/test_resharding.py::test_what_an_operator_leaves_in_the_middle_another_one_ends",
    (
        "runbook.md",
        "2. Start all of them",
    ): "faults/test_shards.py::test_a_shard_that_dies_stops_no_push_and_its_items_come_when_it_is_back",
    (
        "runbook.md",
        "2. Start what is down; two of three",
    ): "faults/test_sessions.py::test_500_items_while_the_zookeeper_leader_is_killed_again_and_again",
    (
        "runbook.md",
        "2. `NotEnoughReplicas`: as for ZkrqNotWritable",
    ): "behaviour/test_limits.py::test_ready_scheduled_and_claimed_items_count",
    ("runbook.md", "2. `zkrq doctor`, on the same machine"): "integration/test_doctor.py::test_a_wrong_password",
    (
        "runbook.md",
        "2. `zkrq stats` says whether the queue is paused",
    ): "integration/test_cli.py::test_looking_and_administering",
    ("runbook.md", "2. `zkrq_handler_seconds`"): "integration/test_metrics.py::test_items_are_counted_and_timed",
    (
        "runbook.md",
        "3. Handlers that must not take effect twice",
    ): "integration/test_snippets.py::test_effects_are_committed_once",
    (
        "runbook.md",
        "3. If some will never be back",
    ): "faults/test_recovery.py::test_recovery_waits_for_every_server_unless_it_is_told_not_to",
    (
        "runbook.md",
        "3. Workers that are there and claim nothing",
    ): "integration/test_probes.py::test_readiness_is_asked_not_remembered",
    (
        "runbook.md",
        "3. ZooKeeper's data is lost",
    ): "faults/test_disaster.py::test_zookeeper_is_lost_altogether_while_clients_run",
    (
        "runbook.md",
        "3. `max_size` makes producers",
    ): "behaviour/test_limits.py::test_ready_scheduled_and_claimed_items_count",
    ("runbook.md", "3. `zkrq dead redrive QUEUE --error TEXT`"): "integration/test_cli.py::test_dead_letters_by_reason",
    (
        "runbook.md",
        "3. `zkrq shards drain NAME` ends a removal",
    ): "behaviour/test_shards.py::test_a_removal_ends_in_vain_if_its_shard_is_used_again",
    ("serve/api.py", "leave it out"): "integration/test_serve.py::test_groups_keep_their_order",
    (
        "serve/api.py",
        "some claims may have been acked: repeat the request",
    ): "integration/test_serve.py::test_several_claims_are_acked_by_one_request",
    (
        "serve/api.py",
        "this server is stopping: ask another one",
    ): "integration/test_serve_process.py::test_what_clients_do_not_settle_within_the_grace_goes_back_uncounted",
    (
        "serve/problems.py",
        "ask another server, or from another page",
    ): "unit/test_serve_security.py::test_a_page_of_another_site_changes_nothing",
    (
        "serve/problems.py",
        "look at /v1/openapi.json",
    ): "integration/test_serve_schema.py::test_it_does_what_its_schema_says",
    ("serve/problems.py", "look at the item's state"): "integration/test_serve.py::test_result_of_an_item",
    (
        "serve/problems.py",
        "make the item smaller",
    ): "integration/test_serve.py::test_errors_of_the_servers_are_told_as_what_they_are",
    (
        "serve/problems.py",
        "repeat: a push under the same id",
    ): "integration/test_serve.py::test_a_push_may_be_repeated_under_its_id",
    (
        "serve/problems.py",
        "retry later",
    ): "integration/test_serve.py::test_errors_of_the_servers_are_told_as_what_they_are",
    (
        "serve/problems.py",
        "retry with another server, or later",
    ): "integration/test_serve.py::test_errors_of_the_servers_are_told_as_what_they_are",
    (
        "serve/problems.py",
        "send JSON, with Content-Type",
    ): "integration/test_serve.py::test_a_bad_push_names_the_field_and_quotes_nothing",
    ("serve/problems.py", "send less at a time"): "integration/test_serve.py::test_bodies_are_bounded",
    (
        "serve/problems.py",
        "send the request faster",
    ): "integration/test_serve_connections.py::test_strangers_who_send_no_body_keep_nobody_out",
    (
        "serve/problems.py",
        "send the token: Authorization",
    ): "integration/test_serve.py::test_a_token_is_asked_for_and_a_server_may_only_show",
    (
        "serve/problems.py",
        "stop working on the item",
    ): "integration/test_serve.py::test_a_cancelled_item_is_told_to_its_holder",
    (
        "serve/problems.py",
        "zkrq serve --hosts",
    ): "unit/test_serve_security.py::test_a_proxys_name_can_be_added_and_a_token_makes_every_name_good",
    (
        "serve/security.py",
        "or listen on 127.0.0.1",
    ): "unit/test_serve_security.py::test_without_a_token_it_does_not_listen_for_other_machines",
    ("servers.md", "    zkrq servers add redis://10.0.0.4"): "integration/test_cli.py::test_servers",
    ("servers.md", "    zkrq servers list"): "integration/test_cli.py::test_servers",
    ("servers.md", "    zkrq servers remove 10.0.0.1:6379"): "integration/test_cli.py::test_servers",
    ("shards.md", "        zkrq shards remove b"): "integration/test_cli.py::test_shards",
    ("shards.md", "    zkrq shards list"): "integration/test_cli.py::test_shards",
    (
        "shards.md",
        "(`zkrq shards remove` gives it up",
    ): "behaviour/test_shards.py::test_a_shard_whose_servers_cannot_be_used_is_given_up",
    ("shards.md", "1. **Drain.**"): "integration/test_cli.py::test_shards",
    ("shards.md", "2. **Empty it.**"): "integration/test_cli.py::test_shards",
    ("shards.md", "3. **Remove**"): "behaviour/test_shards.py::test_a_drained_shard_is_emptied_and_removed",
    (
        "shards.md",
        "4. **Flush its servers**",
    ): "behaviour/test_shards.py::test_a_shard_that_was_removed_may_be_added_again_and_is_another_one",
    (
        "shards.md",
        "Each of these commands may be interrupted",
    ): "behaviour/test_resharding.py::test_what_an_operator_leaves_in_the_middle_another_one_ends",
    (
        "shards.md",
        "To use the shard after all",
    ): "behaviour/test_shards.py::test_adding_a_shard_again_changes_nothing_and_opens_a_draining_one",
    ("shards.md", "zkrq shards drain b --wait"): "integration/test_cli.py::test_shards",
    (
        "sync/portal.py",
        "call from another thread",
    ): "integration/test_sync.py::test_a_call_on_the_clusters_own_loop_is_refused",
    (
        "sync/portal.py",
        "pop a claim in the process that uses it",
    ): "integration/test_sync.py::test_a_forked_process_opens_a_connection_of_its_own",
    (
        "taskiq.py",
        "give the name of a time zone as `cron_offset`",
    ): "frameworks/test_taskiq.py::test_recurring_schedules_are_added_at_run_time",
    (
        "taskiq.py",
        "the broker is not started: `await broker.startup()`",
    ): "frameworks/test_taskiq.py::test_it_is_started_again_and_says_when_it_is_not",
    ("testing/plugin.py", "a fixture anyio_backend"): "unit/test_plugin.py::test_the_fixtures",
    (
        "troubleshooting.md",
        "`no Redis server can be reached`",
    ): "integration/test_connect.py::test_servers_that_do_not_answer",
    ("troubleshooting.md", "`zkrq servers list` shows its place"): "integration/test_cli.py::test_servers",
    (
        "troubleshooting.md",
        'emails.scan(group="order-1")',
    ): "behaviour/test_ordered.py::test_a_failing_item_holds_its_group_until_it_is_a_dead_letter",
    ("troubleshooting.md", "groups_blocked"): "behaviour/test_groups.py::test_a_blocked_group_keeps_nobody_waiting",
    (
        "troubleshooting.md",
        "| `zkrq consumers`",
    ): "behaviour/test_worker.py::test_beyond_its_time_a_handler_is_cancelled_and_has_failed",
    ("troubleshooting.md", "| `zkrq find emails --key K`"): "integration/test_cli.py::test_finding",
    ("troubleshooting.md", "| `zkrq get emails ID`"): "integration/test_cli.py::test_what_an_item_waits_for",
    ("troubleshooting.md", "| `zkrq limits show emails`"): "integration/test_cli.py::test_limits",
    ("troubleshooting.md", "| `zkrq peek emails --state dead`"): "integration/test_cli.py::test_dead_letters",
    (
        "troubleshooting.md",
        "| `zkrq shards list`",
    ): "faults/test_shards.py::test_a_shard_that_dies_stops_no_push_and_its_items_come_when_it_is_back",
    ("troubleshooting.md", "| `zkrq stats`"): "integration/test_cli.py::test_looking_and_administering",
    (
        "troubleshooting.md",
        "| a clock is ahead",
    ): "faults/test_clocks.py::test_the_clock_of_one_of_three_servers_is_set",
    (
        "troubleshooting.md",
        "| a deployment: the handler",
    ): "integration/test_worker_process.py::test_what_does_not_finish_is_handed_back",
    (
        "troubleshooting.md",
        "| over HTTP: the lease ran out",
    ): "integration/test_serve.py::test_a_lease_that_is_extended_holds_for_longer",
    (
        "troubleshooting.md",
        "| the ack raised `OutcomeUnknown`",
    ): "integration/test_worker.py::test_an_ack_is_repeated_while_the_claim_holds",
    ("troubleshooting.md", "| the claim was dropped"): "behaviour/test_unentered.py::test_a_claim_that_was_dropped",
    ("troubleshooting.md", "| the handler raised"): "behaviour/test_worker.py::test_what_a_handler_raises_decides",
    ("troubleshooting.md", "| the process got SIGTERM"): "integration/test_worker_process.py::test_a_signal_drains",
    (
        "troubleshooting.md",
        "| the push was repeated without",
    ): "integration/test_serve.py::test_a_push_may_be_repeated_under_its_id",
    ("upgrading.md", "2. **Replace the programs**"): "chaos/test_rolling.py::test_rolling_both_ways_under_load",
    (
        "upgrading.md",
        "3. **If something is wrong, go back**",
    ): "chaos/test_rolling.py::test_rolling_both_ways_under_load",
    (
        "upgrading.md",
        "4. **Ask who is left**",
    ): "integration/test_levels.py::test_the_command_line_says_who_is_too_old_and_raises_the_level",
    (
        "upgrading.md",
        "5. **Raise the level**",
    ): "integration/test_levels.py::test_the_command_line_says_who_is_too_old_and_raises_the_level",
    ("upgrading.md", "`zkrq servers list` the versions of Redis"): "integration/test_cli.py::test_push_stats_pop",
}
"""Tests of other folders that do what the step says, in the state in which it is said."""

NOT_HERE: dict[Row, str] = {
    ("client/examining/rules.py", "look at its log"): "nothing is done but reading",
    ("replication/batching.py", "nothing happened, retry"): "nothing is done but calling again",
    ("runbook.md", "Afterwards: `zkrq servers list` shows"): "nothing is done but looking",
    ("troubleshooting.md", "failed, that of a dead letter the last one"): "nothing is done but looking",
    ("client/examining/rules.py", "run three"): "the ensemble of the tests has three",
    (
        "client/examining/rules.py",
        "set `cluster-enabled no`, and restart it",
    ): "an option that is read at the start: every other server of the tests runs with it",
    ("client/examining/rules.py", "upgrade it to Redis 7 or later"): "one version of Redis is installed",
    ("client/examining/rules.py", "upgrade the older ones, one at a time"): "one version of Redis is installed",
    ("client/examining/rules.py", "wait until it has read its data from its disk"): "nothing is done but waiting",
    (
        "client/examining/rules.py",
        "write all servers into its zoo.cfg",
    ): "zkrq.local writes it for every ensemble of the tests",
    ("client/timetable_form.py", "this client reads {}: upgrade"): "there is no later release",
    (
        "kombu/__init__.py",
        "give redis_tls and zookeeper_tls",
    ): "options of `connect`, which tests/security/test_tls.py gives",
    (
        "kombu/__init__.py",
        "use prefork, threads or solo",
    ): "gevent and eventlet are not installed; tests/frameworks/test_workers.py runs the others",
    ("kombu/options.py", "give the new redis_password"): "about an option that is ignored",
    ("local/private.py", "no ZooKeeper found"): "packages of the system would have to be removed and installed",
    ("local/private.py", "no java found"): "packages of the system would have to be removed and installed",
    (
        "local/private.py",
        "set it to an unpacked binary release",
    ): "packages of the system would have to be removed and installed",
    ("observability.md", "`ZkrqClaimsLost`"): "refers to other sections",
    ("observability.md", "`ZkrqItemsWait`"): "more of what every test of workers does",
    ("observability.md", "`ZkrqServerFlaps`"): "nothing is done but looking",
    ("protocol/records.py", "this version of zkrq reads {}"): "no release with that format can be installed",
    ("protocol/replies.py", "correct the database number"): "a URL without a number, as in every other test",
    ("protocol/replies.py", "correct the password of redis_auth"): "said by Redis before version 6",
    (
        "protocol/replies.py",
        "correct this client's URL of that server, its options",
    ): "said where no more is known of a refusal",
    (
        "protocol/replies.py",
        "have that server take this command",
    ): "an option that is read at the start: every other server of the tests takes them",
    ("protocol/replies.py", "let this client's host in"): "protected mode lets every client of this machine in",
    ("protocol/replies.py", "upgrade that server"): "one version of Redis is installed",
    ("protocol/server_info.py", "cluster mode is on"): "as for `cluster-enabled`",
    ("protocol/server_info.py", "zkrq needs Redis 7 or later"): "one version of Redis is installed",
    (
        "protocol/view.py",
        "let the version that wrote them empty the queues",
    ): "no release with that format can be installed",
    (
        "replication/batching.py",
        "calls are waiting already",
    ): "nothing is done but calling again: `unit/test_batching.py` has queues that empty",
    (
        "replication/wire.py",
        "install redis>=5.0,<9",
    ): "another package would have to be installed; `make oldest` runs with the oldest one",
    ("runbook.md", "1. Its latency"): "nothing is done but looking",
    ("runbook.md", "2. A lost session: as for ZkrqSession"): "refers to other sections",
    ("runbook.md", "2. Correct the handler, or what it calls"): "the users' own code",
    ("runbook.md", "3. Start more workers, or raise `--concurrency`"): "more of what every test of workers does",
    ("serve/problems.py", "correct the server's settings"): "each error of the settings has a row of its own",
    ("serve/problems.py", "look at the server's log"): "nothing is done but reading",
    ("testing/clock.py", "start cannot be set"): "the servers that use the clock end with their own test",
    ("troubleshooting.md", "| the process was killed, or its machine died"): "nothing is to be done",
    ("troubleshooting.md", "| the process was paused, or a handler blocked"): "as for a blocked loop in the runbook",
    ("troubleshooting.md", "| the receipt of its push"): "nothing is done but reading",
    ("troubleshooting.md", "| the worker's prefetch"): "nothing is to be done",
    ("upgrading.md", "1. **Read the changelog's"): "nothing is done but reading",
}
"""Steps that are not carried out, and why."""

NO_STEP: dict[Row, str] = {
    ("protocol/scripts.py", "redis.register_function"): "Lua",
    ("cli/removing.py", "cancel {} of queue"): "a question",
    ("cli/removing.py", "delete queue {} in {}"): "a question",
    ("cli/removing.py", "remove {} of queue"): "a question",
    ("cli/removing.py", "remove {}of queue"): "a question",
    ("cli/serve.py", "`zkrq serve`"): "a name",
    ("cli/shards.py", "remove shard {} of {}"): "a question",
    ("cli/upgrade.py", "zkrq upgrade --check --wait 60"): "a part of the text before it",
    ("client/examining/reading.py", "list[bytes | None]"): "a type",
    ("client/examining/reading.py", "tuple[bytes, list[bytes]]"): "a type",
    ("client/examining/rules.py", "Name or service not known"): "words of an error",
    ("client/examining/rules.py", "and zkrq needs independent servers"): "what is wrong",
    ("client/examining/rules.py", "and zkrq replicates by itself"): "what is wrong",
    ("client/examining/rules.py", "name resolution"): "words of an error",
    ("client/stored.py", "set {}"): "a name",
    ("opentelemetry.py", "push {}"): "the name of a span",
    ("outbox/django/management/commands/zkrq_forward.py", "Forward the outbox"): "help",
    ("outbox/django/management/commands/zkrq_forward.py", "end when the outbox is empty"): "help",
    ("outbox/forwarding.py", "zkrq outbox {}"): "the name of a task",
    ("outbox/inbox.py", "DELETE FROM"): "SQL",
    ("producing/pusher.py", "push of ids to {}"): "the name of a batcher",
    ("producing/pusher.py", "push to {}"): "the name of a batcher",
    ("protocol/records.py", "expire and keep"): "the name of a change",
    ("protocol/replies.py", "read the view again"): "what a client does",
    ("protocol/replies.py", "retry; one client's own problem"): "what a client does",
    ("protocol/view.py", "ask the other clients"): "what a client does",
    ("protocol/view.py", "leave the other clients time"): "what a client does",
    ("repair/repairer.py", "--shard {} "): "a part of a command",
    ("replication/membership.py", "--shard {} "): "a part of a command",
    ("serve/actions.py", "This cannot be undone"): "a question",
    ("serve/api.py", "A token of `--token-file`"): "the schema's",
    ("serve/api.py", "It may have happened: repeat the request"): "the schema's",
    ("serve/api.py", "Nothing happened; retry later."): "the schema's",
    ("serve/api.py", "The claim does not hold any more"): "the schema's",
    ("serve/api.py", "The queue is full. Nothing happened"): "the schema's",
    ("serve/app.py", "Push, claim and settle items"): "the schema's",
    ("serve/security.py", "it was started with --read-only"): "what is so",
    ("serve/security.py", "zkrq session {}"): "a name",
    ("troubleshooting.md", "| error | reason"): "the head of a table",
    ("troubleshooting.md", "| look at | if so"): "the head of a table",
    ("troubleshooting.md", "| reason | how to see it"): "the head of a table",
    ("upgrading.md", "1 client must be replaced"): "what a command prints",
}
"""Texts that have the form of a step, and what they are."""
