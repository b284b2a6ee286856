"""Prepared processes: ``zkrq`` commands that begin with everything imported.

Importing is nearly all that a short command costs, most of a second of processor time, and so the greater part of what
testing the command line costs.  A server imports once and forks for each command:

    python -m tests.prepared SOCKET                      the server; it ends with the process that started it
    python -I -S tests/prepared.py SOCKET argument...    what a test starts in place of ``zkrq argument...``

The second one hands its files, directory and environment to the command, passes on signals, and ends as the command
does.  If it is killed, so is the command.  Variables that the interpreter reads (``PYTHONPATH``) have no effect.
"""

import marshal
import os
import signal
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket  # `socket` would take longer than all the rest
from array import array

FILES = (0, 1, 2)
MAX_REQUEST = 1 << 20
"""Bytes of arguments and environment."""
NUMBER_BYTES = 4
LATE = ("anyio._backends._asyncio", "uvloop", "zkrq.replication.redis_wire")
"""What every command imports when it begins to work, where it is installed."""
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def ask(path: str, arguments: list[str]) -> int:
    """Have a command run in this process's place; its exit code."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.connect(path)
    request = marshal.dumps((os.getcwd(), dict(os.environ), arguments))
    connection.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, array("i", FILES))])
    pid = _number(connection)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = _number(connection)
    if code < 0:  # ended by a signal
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _number(connection: socket) -> int:
    return int.from_bytes(connection.recv(NUMBER_BYTES), signed=True)


def serve(path: str) -> None:
    """Run commands, each in a fork, until the parent has gone."""
    import gc
    import socket
    import socketserver
    import threading
    from contextlib import suppress
    from importlib import import_module

    from zkrq.cli.running import main

    for name in LATE:
        with suppress(ImportError):
            import_module(name)

    class Command(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            request, files, *_ = socket.recv_fds(self.request, MAX_REQUEST, len(FILES))
            pid = os.fork()
            if not pid:
                os._exit(self.run(files, *marshal.loads(request)))
            self.tell(pid)
            threading.Thread(target=self.end_with_the_asker, args=[os.pidfd_open(pid)], daemon=True).start()
            self.tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        def run(self, files: list[int], directory: str, environment: dict[str, str], arguments: list[str]) -> int:
            self.request.close()
            for number, file in zip(FILES, files, strict=True):
                os.dup2(file, number)
                os.close(file)
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv[1:] = arguments
            try:
                return main(arguments)
            except SystemExit as ended:
                return ended.code if isinstance(ended.code, int) else ended.code is not None
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
                return 1
            finally:
                sys.stdout.flush()

        def tell(self, number: int) -> None:
            self.request.send(number.to_bytes(NUMBER_BYTES, signed=True))

        def end_with_the_asker(self, process: int) -> None:
            self.request.recv(1)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)

    class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
        parent = os.getppid()

        def service_actions(self) -> None:
            super().service_actions()  # waits for those that have ended
            if os.getppid() != self.parent:
                sys.exit()

    with Server(path, Command) as server:
        gc.freeze()  # what the forks share stays shared
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    path, *arguments = sys.argv[1:]
    if __package__:
        serve(path)
    else:
        sys.exit(ask(path, arguments))
