"""Interpreters that have PyTorch imported: most of what a small program costs are its imports.

``command()`` begins a command line as ``[sys.executable]`` does (``-u``, ``-W ignore``, then a
script, ``-c code`` or ``-m module``, and arguments). Behind it a server, one for each process of
tests, has imported PyTorch, and what that imports when an optimizer first steps, and forks: the
child has the caller's variables, folder, standard streams and arguments, is ``__main__``, and ends
as an interpreter ends. It was started with the server's variables, though: what libraries read when
they are loaded (``LD_PRELOAD``, ``OMP_NUM_THREADS``) is given to ``command``. ``test_forked.py``
compares the two. Where importing starts threads, which children would lack, it is
``[sys.executable]`` indeed.

As a program this file is the server, or what stands in for the child, which it starts and whose
status it ends with.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import io
import json
import os
import selectors
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # the program that stands in for a child imports little
    from pathlib import Path
    from types import TracebackType

_servers: dict[tuple[object, ...], str | None] = {}


def command(*modules: str, **variables: str) -> list[str]:
    """The beginning of a command line, in place of ``[sys.executable]``.

    Args:
        modules: what else is imported.
        variables: of the environment, when PyTorch is loaded.
    """
    key = (os.getpid(), modules, tuple(sorted(variables.items())))
    if key not in _servers:
        _servers[key] = _start(modules, variables)
    address = _servers[key]
    return [sys.executable, "-SIE", __file__, "run", address] if address else [sys.executable]


def executable(path: Path, *words: str, modules: tuple[str, ...] = (), **variables: str) -> str:
    """Writes a program to take the place of ``sys.executable``, in a PATH or where its path is
    asked for; with words that come before its arguments."""
    import shlex

    start = shlex.join([*command(*modules, **variables), *words])
    path.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _start(modules: tuple[str, ...], variables: dict[str, str]) -> str | None:
    """Starts a server; its address, or None if none can be."""
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="lms-forked-")
    address = os.path.join(folder, "socket")
    without = ("PYTHONPATH", "LD_PRELOAD")
    environment = {k: v for k, v in os.environ.items() if k not in without} | variables
    environment["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's: no threads that a child would not have
    words = [sys.executable, __file__, "serve", address, *modules]
    # It ends when its input does: at the latest with this process.
    server = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    assert server.stdin is not None and server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        server.communicate()
        os.rmdir(folder)
        return None
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            server.stdin.close()
            server.wait()

    atexit.register(end)
    return address


# ---- the server


class _Child:
    """A forked process, and the connection of who waits for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid = 0


def _serve(address: str, modules: list[str]) -> object:
    """Returns in each child, with what it is to run, and in the server when nobody needs it."""
    import gc
    import importlib

    paths = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    for name in ("torch", "torch._dynamo", *modules):
        importlib.import_module(name)
    if os.listdir("/proc/self/task") != [str(os.getpid())]:
        return None  # an import has started threads, which no child would have
    gc.collect()
    gc.freeze()
    if any(type(one).__module__ == "nanobind" for one in _compiled()):
        # What is frozen is not collected at the end either, of which such extensions complain.
        atexit.register(gc.unfreeze)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: for the tests
    if ignored == signal.SIG_IGN:  # tests in the background of a shell
        ignored = signal.default_int_handler
    selector = selectors.DefaultSelector()
    for source in (0, woken, listener):
        selector.register(source, selectors.EVENT_READ)
    children: dict[int, _Child] = {}
    os.write(1, b"ready\n")

    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                os.unlink(address)
                os.rmdir(os.path.dirname(address))
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return None
            if key.fileobj == woken:
                os.read(woken, 4096)
                _reap(children, selector)
            elif key.fileobj is listener:
                child = _Child(listener.accept()[0])
                with contextlib.suppress(OSError, ValueError):
                    request, streams = _receive(child.connection)
                    child.pid = os.fork()
                    if child.pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        signal.signal(signal.SIGINT, ignored)
                        selector.close()
                        listener.close()
                        child.connection.close()
                        for other in children.values():
                            other.connection.close()
                        os.close(woken)
                        os.close(wake)
                        _become(request, streams, paths)
                        return request["words"]
                    for stream in streams:
                        os.close(stream)
                    child.connection.sendall(b"%d\n" % child.pid)
                    children[child.pid] = child
                    selector.register(child.connection, selectors.EVENT_READ, child)
                if child.pid == 0:
                    child.connection.close()
            else:  # who waited has gone
                os.kill(key.data.pid, signal.SIGKILL)
                selector.unregister(key.fileobj)


def _compiled() -> list[object]:
    """What is in the extension modules that have been imported."""
    modules = [
        one for one in sys.modules.values() if (getattr(one, "__file__", "") or "").endswith(".so")
    ]
    return [one for module in modules for one in vars(module).values()]


def _receive(connection: socket.socket) -> tuple[dict, list[int]]:
    """A request, and the standard streams that come with it."""
    size = array.array("i").itemsize
    text, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * size))
    streams = array.array("i")
    for _, _, data in ancillary:
        streams.frombytes(data)
    length = int.from_bytes(text, "little")
    text = b""
    while len(text) < length:
        part = connection.recv(length - len(text))
        if not part:
            raise ValueError("an end within a request")
        text += part
    return json.loads(text), list(streams)


def _reap(children: dict[int, _Child], selector: selectors.BaseSelector) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        child = children.pop(pid)
        with contextlib.suppress(KeyError, OSError):
            selector.unregister(child.connection)
            child.connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        child.connection.close()


def _become(request: dict, streams: list[int], paths: list[str]) -> None:
    """Takes the caller's streams, folder, variables and paths."""
    for stream in sorted(streams):
        assert stream > 2
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.umask(request["mask"])
    os.environ.clear()
    os.environ.update(request["variables"])
    at_once = bool(os.environ.get("PYTHONUNBUFFERED")) or request["words"][0] == "-u"
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        if number == 0:
            binary = open(number, "rb", closefd=False)  # noqa: SIM115
        else:
            binary = open(number, "wb", 0 if at_once else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            binary,
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=number == 2 or (number == 1 and os.isatty(1)),
            write_through=number > 0 and at_once,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*named, *paths]
    sys.path_importer_cache.clear()


def _run(words: list[str]) -> None:
    """What an interpreter does with a command line."""
    import runpy
    import types

    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-u":
        words = words[1:]
    if words[:2] == ["-X", "faulthandler"]:
        import faulthandler

        faulthandler.enable()
        words = words[2:]
    if words[:2] == ["-W", "ignore"]:
        import warnings

        warnings.simplefilter("ignore")
        words = words[2:]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *words[2:]]
        runpy._run_module_as_main(words[1])  # as it does
        return
    if words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        code = compile(words[1], "<string>", "exec", dont_inherit=True)
    else:
        if words[0].startswith("-"):
            raise RuntimeError(f"an interpreter of its own is needed for {words[0]}")
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
        sys.argv = list(words)
        main.__file__ = words[0]
        with open(words[0], "rb") as source:
            code = compile(source.read(), words[0], "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _without(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without what is this file's, and ``runpy``'s."""
    ours = (__file__, "<frozen runpy>", os.path.join(os.path.dirname(os.__file__), "runpy.py"))
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback


def _as_main(words: list[str]) -> None:
    """Runs it, and says of an exception what an interpreter says."""
    try:
        _run(words)
    except SystemExit:
        raise
    except BaseException as error:
        kind, trimmed = type(error), _without(error.__traceback__)
        sys.excepthook(kind, error.with_traceback(trimmed), trimmed)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    else:
        return
    sys.exit(status)


# ---- in place of a child


def _stand_in(address: str, words: list[str]) -> int:
    """Has a child do it, hands on signals, and ends as it ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    mask = os.umask(0)
    os.umask(mask)
    request = json.dumps(
        {"words": words, "folder": os.getcwd(), "mask": mask, "variables": dict(os.environ)}
    ).encode()
    streams = array.array("i", [0, 1, 2])
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
    handed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, handed_on)
    connection.sendmsg([len(request).to_bytes(8, "little")], rights)
    connection.sendall(request)
    answer = connection.makefile("r")
    pid = int(answer.readline())
    for number in handed_on:
        signal.signal(number, lambda sent, _: os.kill(pid, sent))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handed_on)
    status = int(answer.readline() or 1)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(_stand_in(sys.argv[2], sys.argv[3:]))
    _words = _serve(sys.argv[2], sys.argv[3:])
    if _words is not None:
        sys.modules["forked"] = sys.modules["__main__"]
        _as_main(_words)
