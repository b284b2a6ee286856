"""Start children: a process without threads imports what handlers need, once, and forks itself for each child.

A process that forks while other threads hold locks leaves them locked in its child for good, so the parent, with its
event loop and threads, forks nothing.  ``multiprocessing`` has such a process too, but only one in each program, which
is the user's; it cannot send signals, and says nothing of how a child ended until it is waited for.

The starter alone waits for its children, so only it may send them signals: a number of a process that another has
waited for may be that of a stranger.  It reports each end, and ends with the connection to its parent.  On Linux the
kernel kills it when the parent dies, and each child when it dies, even one whose interpreter is stuck in C code.

Each child leads a process group: what its handlers have started is killed when it has ended.  It also keeps Ctrl-C of a
terminal from it, which drains the parent.
"""

from __future__ import annotations

import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module

from zkrq.pool.child import run_child
from zkrq.pool.frames import DOWN_MAX, Frames, Kind, decode_down, encode_up
from zkrq.pool.setup import IGNORED, READ_BYTES, Setup, load_main

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, this process, dies.  Does nothing except on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(0)


def adopt_orphans() -> None:
    """Be the parent of what descendants leave behind, in place of process 1.  Does nothing except on Linux.

    In a container process 1 may be the worker, which waits for none of them, so they would stay as zombies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(descriptor: int, parent: int) -> None:
    """Run the starter of a parent, at its end of the connection."""
    die_with(parent)
    adopt_orphans()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    with control, suppress(BrokenPipeError, ConnectionResetError):  # the parent has gone
        _Starter(control).run()


class _Starter:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._frames = Frames(DOWN_MAX)
        self._sockets: list[int] = []
        """Descriptors of children's ends that have arrived, in the order of the frames that ask for these children."""
        self._children: dict[int, int] = {}
        """Numbers of children, by their processes."""
        self._setup: Setup | None = None
        self._own: list[socket.socket | selectors.BaseSelector] = []
        """What no child is to have."""
        self._has_ended = False

    def run(self) -> None:
        """Serve until the parent closes the connection; then kill the children that are left."""
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with woken, wakes, selectors.DefaultSelector() as selector:
            self._own = [self._control, woken, wakes, selector]
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._has_ended:
                for key, _ in selector.select():
                    if key.fileobj is woken:
                        with suppress(BlockingIOError):
                            woken.recv(READ_BYTES)
                        self._reap()
                    else:
                        self._read()
            signal.set_wakeup_fd(-1)
        for process in [*self._children]:
            _kill_group(process)
            os.waitpid(process, 0)

    def _read(self) -> None:
        data, sockets, _, _ = socket.recv_fds(self._control, READ_BYTES, 16)
        self._sockets += sockets
        if not data:
            self._has_ended = True
        for kind, body in self._frames.feed(data):
            if self._has_ended:
                return
            values = decode_down(body)
            if kind == Kind.BEGIN:
                self._begin(Setup(*values))
            elif kind == Kind.ITEM:
                self._fork(values[0], self._sockets.pop(0))
            elif kind == Kind.SIGNAL:
                self._signal(*values)

    def _begin(self, setup: Setup) -> None:
        """Import what the handlers need.  What fails here fails in a child again, which says so."""
        self._setup, before = setup, _sockets()
        sys.argv[:] = setup.arguments
        for name in setup.preload:
            with suppress(Exception, SystemExit):
                if name == "__main__":
                    load_main(setup)
                else:
                    import_module(name)
        if why := _why_unfit(before):
            self._control.sendall(encode_up(Kind.UNFIT, why=why[:1000]))
            self._has_ended = True
        gc.collect()
        gc.freeze()  # the collector of a child touches none of the pages that all share

    def _signal(self, child: int, number: int) -> None:
        process = next((process for process, each in self._children.items() if each == child), None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            (os.killpg if number == signal.SIGKILL else os.kill)(process, number)

    def _fork(self, child: int, descriptor: int) -> None:
        assert self._setup
        starter = os.getpid()
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            process = os.fork()
        except OSError as error:
            os.close(descriptor)
            self._control.sendall(encode_up(Kind.ENDED, child=child, error=str(error)))
            return
        finally:
            if starter == os.getpid():
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if process == 0:
            _become(self._setup, starter, descriptor, self._own)
        os.close(descriptor)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(process, process)  # the child does so, too: it must be one before anybody kills it
        self._children[process] = child
        self._control.sendall(encode_up(Kind.FORKED, child=child, process=process))

    def _reap(self) -> None:
        """Report the children that have ended, after killing what is left of their groups; forget ended orphans."""
        with suppress(ChildProcessError):  # there is none
            while process := _ended():
                if process in self._children:
                    _kill_group(process)
                _, status, used = os.wait4(process, 0)
                if (child := self._children.pop(process, None)) is not None:
                    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
                    self._control.sendall(encode_up(Kind.ENDED, child=child, code=code, seconds=seconds))


def _ended() -> int:
    """Return a process that has ended and was not waited for, 0 if there is none.

    Its group is killed before it is waited for: until then no other process can have its number.
    """
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return ended.si_pid if ended else 0


def _kill_group(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def _become(
    setup: Setup, starter: int, descriptor: int, unwanted: list[socket.socket | selectors.BaseSelector]
) -> None:
    """Be a child, in a process that was just forked.  Does not return."""
    code = 1
    try:
        die_with(starter)
        with suppress(PermissionError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in unwanted:
            each.close()
        with suppress(Exception):  # `random` does so by itself
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()
        code = run_child(setup, socket.socket(fileno=descriptor))
    except BaseException:  # not of a handler
        with suppress(Exception):
            traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _why_unfit(before: set[str]) -> str:
    """Say what modules have done that children must not share, empty if nothing; ``before``: sockets that were there.

    A thread that holds a lock is missing in a child, and a connection would carry the words of all of them.
    """
    begun = sorted(each.name for each in threading.enumerate() if each is not threading.main_thread())
    opened = len(_sockets() - before)
    threads = [f"start threads ({', '.join(begun)})"] if begun else []
    return " and ".join([*threads, *([f"open connections ({opened})"] if opened else [])])


def _sockets() -> set[str]:
    """Return the open sockets of this process, on Linux."""
    found = set[str]()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {each for each in found if each.startswith("socket:")}


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
