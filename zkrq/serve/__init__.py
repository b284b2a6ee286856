"""Serve a namespace over HTTP: an API for programs in other languages, and a page for people.

problems   errors as HTTP says them
bodies     what requests and replies consist of, checked; OpenAPI is made of it
leases     the lease of one client on one claim: decisions, without I/O
holding    claims that clients hold, each in a task of its own
queues     the queues that clients have named
api        the calls
curves     figures of the last minutes, and how they are drawn
watching   looks at the namespace, for all pages that are open
page       what people see, in templates/ and static/
monitoring probes and metrics
security   which requests are let in: decisions, without I/O
guard      every request before it reaches a call: security, bounds on bodies, time and concurrency
app        all of it as an ASGI application
program    the server process: sockets, readiness, drain

Needs the extra ``web``.
"""
