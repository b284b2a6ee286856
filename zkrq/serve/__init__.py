"""Serve a namespace over HTTP: an API for programs in other languages, and a page for people.

problems   errors as HTTP says them
bodies     what requests and replies consist of, from the table of operations; OpenAPI is made of it
calls      paths and parameters of the calls, from the same table
leases     the lease of one client on one claim: decisions, without I/O
holding    claims that clients hold, each in a task of its own
queues     the queues that clients have named
api        carries out the calls
curves     figures of the last minutes, and how they are drawn
watching   looks at the namespace, for all pages that are open
listing    the table of queues
letters    dead letters in groups
payloads   payloads as text
texts      figures as text
contents   items of one queue, read for its pages
actions    what buttons do, and what is asked first
shown      one queue in figures and curves
rendering  templates, which escape whatever they are given
showing    replies that all pages consist of
sessions   browsers let in for a token
queue_pages  what people see of one queue, and do with its items
page       what people see, in templates/ and static/
files      the files of the page
monitoring probes and metrics
lines      few lines in the log of what strangers repeat
connections  places for connections, and time limits for heads and replies
security   which requests are let in: decisions, without I/O
guard      every request before it reaches a call: security, bounds on bodies, time and concurrency
app        all of it as an ASGI application
program    the server process: sockets, readiness, drain

Needs the extra ``web``.
"""
