"""Record the library's script calls: a ``dial`` whose wires note each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import hiredis

from zkrq.protocol.scripts import SCRIPTS
from zkrq.replication.stream import Receiver
from zkrq.replication.urls import dial
from zkrq.replication.wire import Wire, pack

SCRIPT_OF = {script.function.encode(): name for name, script in SCRIPTS.items()}


class ScriptCall(NamedTuple):
    """One ``FCALL``: its server, its script, all its words and its length on the wire in bytes."""

    url: str
    script: str
    words: tuple[bytes, ...]
    bytes: int

    @property
    def items(self) -> int:
        """Number of repetitions of the header's repeated arguments; 0 for a script that takes no items."""
        script = SCRIPTS[self.script]
        if not script.repeated:
            return 0
        return (len(self.words) - 3 - len(script.keys) - len(script.arguments)) // len(script.repeated)


class Recording:
    """Record every script call of a client, in the order of sending."""

    def __init__(self) -> None:
        self.calls: list[ScriptCall] = []
        self._wires: list[_RecordingWire] = []

    def dial(self, url: str, timeout: float) -> Callable[[], Wire]:
        """Make wires; the argument for ``Cluster(dial=...)``."""
        make = dial(url, timeout)

        def wire() -> Wire:
            self._wires.append(_RecordingWire(make(), url, self.calls))
            return self._wires[-1]

        return wire

    @property
    def in_flight(self) -> int:
        """Number of commands, scripts and others, whose replies have not arrived."""
        return sum(wire.in_flight for wire in self._wires)

    def take(self) -> list[ScriptCall]:
        """Return the calls since the last time."""
        taken = self.calls[:]
        self.calls.clear()
        return taken


class _RecordingWire:
    def __init__(self, wire: Wire, url: str, calls: list[ScriptCall]) -> None:
        self._wire = wire
        self._url = url
        self._calls = calls
        self.in_flight = 0
        self.prepare = wire.prepare
        self.connect = wire.connect
        self.ask = wire.ask
        self.close = wire.close

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        write = self._wire.start(_Counting(receiver, self))

        def note(data: bytes) -> None:
            self._note(data)
            write(data)

        return note

    def _note(self, data: bytes) -> None:
        reader = hiredis.Reader()
        reader.feed(data)
        while (words := cast("list[bytes] | bool", reader.gets())) is not False:
            assert isinstance(words, list)
            self.in_flight += 1
            if words[0] == b"FCALL" and words[1] in SCRIPT_OF:
                self._calls.append(ScriptCall(self._url, SCRIPT_OF[words[1]], tuple(words), len(pack(tuple(words)))))


class _Counting(Receiver):
    """A receiver that counts the replies."""

    def __init__(self, receiver: Receiver, wire: _RecordingWire) -> None:
        self._receiver = receiver
        self._wire = wire
        self.pause_writing, self.resume_writing = receiver.pause_writing, receiver.resume_writing

    def heard(self, reply: object) -> None:
        self._wire.in_flight = max(0, self._wire.in_flight - 1)  # messages of a subscription answer no command
        self._receiver.heard(reply)

    def ended(self, error: OSError) -> None:
        self._wire.in_flight = 0
        self._receiver.ended(error)
