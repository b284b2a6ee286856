"""Mutants of strangers, who gets in, and what is shown."""

from __future__ import annotations

from tests.mutants.trial import Mutant, Suite

MUTANTS: tuple[Mutant, ...] = (
    # -- strangers -----------------------------------------------------------------------------------------------------
    Mutant(
        "a-byte-now-and-then-keeps-a-probes-connection",
        "zkrq/process/listening.py",
        "left = self._deadline - time.monotonic()",
        "left = REQUEST_SECONDS",
        "a request to a worker's probes has one deadline, however slowly its bytes arrive",
        Suite("tests/integration/test_probes.py"),
    ),
    Mutant(
        "half-a-head-keeps-a-connection",
        "zkrq/serve/connections.py",
        "self._head_due = self.loop.call_later(HEAD_SECONDS, self.give_up)",
        "pass",
        "the head of a request has a deadline",
        Suite("tests/integration/test_serve_connections.py"),
    ),
    Mutant(
        "connections-take-all-descriptors",
        "zkrq/serve/connections.py",
        "return min(CONNECTIONS_MAX, limit - min(DESCRIPTORS_KEPT, limit // 2))",
        "return min(CONNECTIONS_MAX, limit)",
        "descriptors are left for Redis and ZooKeeper",
        Suite("tests/integration/test_serve_connections.py"),
    ),
    Mutant(
        "letters-are-discarded-unasked",
        "zkrq/serve/queue_pages.py",
        "if not form.confirmed and (asked := await _ask(queue, verb, form)):",
        "if False and (asked := await _ask(queue, verb, form)):",
        "what cannot be undone is confirmed on the server, with or without scripts",
        Suite("tests/integration/test_serve_page.py"),
    ),
    # -- who gets in, and what is shown --------------------------------------------------------------------------------
    Mutant(
        "login-is-logged",
        "zkrq/coordination/zookeeper/link.py",
        "answer = self._connection.send(_Login(",
        "answer = self._connection.send(protocol.AuthRequest(",
        "aiozk logs every request, and this one has a password",
        Suite("tests/security/test_secrets.py"),
    ),
    Mutant(
        "unknown-option-is-shown",
        "zkrq/replication/urls.py",
        'return option if name.startswith(_HARMLESS) or not is_set else f"{name}=..."',
        "return option",
        "a password under a misspelt name is no less one",
        Suite("tests/unit/test_urls.py", "-k", "unknown_option"),
    ),
    Mutant(
        "view-names-a-server-with-options",
        "zkrq/replication/urls.py",
        "public = without_credentials(url)",
        "public = url",
        "no URL of the view loosens what a program was told",
        Suite("tests/unit/test_urls.py", "-k", "only_the_place_counts"),
    ),
    Mutant(
        "view-leads-out-of-tls",
        "zkrq/replication/urls.py",
        "if self.lacks_tls(public):",
        "if False:",
        "a program that was told to use TLS connects by nothing else",
        Suite("tests/unit/test_urls.py", "-k", "leave_out_tls"),
    ),
    Mutant(
        "deployments-hear-each-other",
        "zkrq/protocol/attempts.py",
        'Broadcast(f"{view.deployment}:{topic}", message)',
        "Broadcast(topic, message)",
        "a broadcast stays in its deployment",
        Suite("tests/integration/test_neighbours.py", "-k", "broadcast"),
    ),
    Mutant(
        "refused-certificate-looks-like-a-death",
        "zkrq/replication/redis_wire.py",
        "elif alert := await read_alert(host, port, _context(self._connection)):",
        "elif alert := None:",
        "a client's own certificate evicts no server",
        Suite("tests/security/test_tls.py", "-k", "redis_refuses or expires"),
    ),
    Mutant(
        "certificate-of-any-host-will-do",
        "zkrq/base/tls.py",
        "context.check_hostname = self.check_hostname",
        "context.check_hostname = False",
        "another server with a certificate of the same authority is not the server that is meant",
        Suite("tests/security/test_tls.py", "-k", "is_of_another_host"),
    ),
    Mutant(
        "znodes-stay-open",
        "zkrq/coordination/zookeeper/coordinator.py",
        "await link.protect(path)",
        "pass",
        "znodes from before there were credentials are not left to everybody",
        Suite("tests/security/test_znode_rights.py", "-k", "gets_it"),
    ),
)
