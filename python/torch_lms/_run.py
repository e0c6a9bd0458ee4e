"""``lms run`` and ``python -m torch_lms run``: a Python program under LMS, in this process."""

from __future__ import annotations

import argparse
import atexit
import builtins
import importlib.machinery
import logging
import os
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import torch_lms

from . import _ranks, _settings
from ._summary import format_bytes

_USAGE = "%(prog)s [setting ...] [--] program [argument ...]"
_EPILOG = """\
The program is a Python file (train.py), a folder or a zip with a __main__.py, a module (-m name),
or the name of an installed Python program (nnUNetv2_train). It runs in this process as if Python
had started it, after torch_lms.enable() with the settings. Variables (LMS_LIMIT, ...) count, too.

Processes that the program starts are as they were without LMS: data loaders need none. For several
GPUs --nproc-per-node starts a process for each, as torchrun does, and each under LMS.
"""


class ProgramError(Exception):
    """The program cannot be run; the message says why."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lms run",
        usage=_USAGE,
        description="Runs a Python program under LMS.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for row in _settings.TABLE:
        option = f"--{row.name.replace('_', '-')}"
        text = f"{row.doc} (default: {row.default_text}; {row.variable})".replace("%", "%%")
        parser.add_argument(option, metavar="VALUE", help=text)
    parser.add_argument(
        "--nproc-per-node",
        metavar="N",
        help="so many processes of this machine run the program, each with the GPU of its rank: a "
        "number, or gpu for one a GPU (torchrun starts them; with torchrun's other options: "
        "torchrun ... -m torch_lms run ...)",
    )
    parser.add_argument("--bind", choices=("on", "off"), default="off", help=argparse.SUPPRESS)
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is for ``lms run``, and the program with its arguments. An option takes the next word
    where it has no ``=``; the first other word is the program; ``--`` ends the options."""
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return arguments[:at], arguments[at + 1 :]
        if word == "-m":
            return arguments[:at], arguments[at:]
        if not word.startswith("-") or word == "-":
            break
        at += 1 if "=" in word or word in ("-h", "--help") else 2
    return arguments[:at], arguments[at:]


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1024)


def _is_python(head: bytes) -> bool:
    """Whether a program begins as Python does: by its ``#!``, or as pip writes it for long paths (a
    shell that starts Python on the same file)."""
    lines = head.splitlines()[:3]
    return bool(lines) and (
        (lines[0].startswith(b"#!") and b"python" in lines[0])
        or (lines[0].startswith(b"#!/bin/sh") and any(b"python" in line for line in lines[1:]))
    )


def find_program(name: str) -> Path:
    """The file that ``name`` means: the path of a script, else an installed Python program, first
    this interpreter's.

    Raises:
        ProgramError: there is none, or it is no Python program of this interpreter.
    """
    path = Path(name)
    # A folder that happens to have a program's name (`yolo`) is none.
    is_program = (path / "__main__.py").is_file() if path.is_dir() else bool(path.suffix)
    if path.exists() and (is_program or os.sep in name):
        return path
    own = Path(sysconfig.get_path("scripts")) / name
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        if path.is_file():
            return path
        raise ProgramError(
            f"{name!r} is neither a file here nor a program on the PATH; a module is run with -m"
        )
    program = Path(found)
    if not _is_python(_first_bytes(program)):
        raise ProgramError(
            f"{found} is no Python program: LMS works within the process that trains. Name the "
            "Python program that it starts"
        )
    if program.parent.resolve() != own.parent.resolve():
        first = _first_bytes(program).splitlines()[0].decode(errors="replace")
        interpreter = first.removeprefix("#!").strip()
        named = "python" in interpreter and "env " not in interpreter
        if named and not _same_place(interpreter, sys.executable):
            raise ProgramError(
                f"{found} is a program of another Python ({interpreter}); this is "
                f"{sys.executable}. Install torch_lms there, and use its lms"
            )
    return program


def _same_place(one: str, other: str) -> bool:
    """Whether two interpreters are of one installation: a virtual environment's is a link."""
    return os.path.realpath(os.path.dirname(one)) == os.path.realpath(os.path.dirname(other))


def _search_first(folder: str) -> None:
    """What Python itself puts in front for a program, in the place of what it put there for us."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def _run_file(path: Path, arguments: list[str]) -> None:
    sys.argv = [str(path), *arguments]
    if path.is_dir() or path.suffix == ".zip":
        runpy.run_path(str(path), run_name="__main__")
        return
    _search_first(str(path.resolve().parent))
    # Not runpy.run_path: its module is gone when the program has ended, while threads and exit
    # handlers still use it, and pickle looks for it.
    loader = importlib.machinery.SourceFileLoader("__main__", str(path))
    code = loader.source_to_code(loader.get_data(str(path)), str(path))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=builtins, __loader__=loader)
    module.__spec__ = None
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = [name, *arguments]
    _search_first(os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _say_what_happened(process: int) -> None:
    """A line on each managed device at the end, where the log is on."""
    if os.getpid() != process:
        return  # a process that was forked off
    for device in torch_lms.devices():
        stats = torch_lms.memory_stats(device)
        logging.getLogger("torch_lms").info(
            "%s: at most %s of tensors under a limit of %s; %s left and %s came back; %d steps ran "
            "under a plan",
            device,
            format_bytes(stats["device.bytes.peak"]),
            format_bytes(stats["limit"]),
            format_bytes(stats["bytes_out"]),
            format_bytes(stats["bytes_in"]),
            stats["plan.steps"],
        )


def _say_when_it_leaves() -> None:
    """A line on standard error where the program has another one take its place in this process."""
    process, said = os.getpid(), []

    def hear(event: str, given: tuple[object, ...]) -> None:
        if event != "os.exec" or said or os.getpid() != process:
            return
        path = os.fsdecode(given[0])  # type: ignore[arg-type]
        if not os.access(path, os.X_OK):
            return  # one of the folders in which it is looked for
        said.append(path)
        words = [os.fsdecode(word) for word in given[1]]  # type: ignore[attr-defined, arg-type]
        command = " ".join(words[:6]) + (" ..." if len(words) > 6 else "")
        print(
            f"torch_lms: {Path(path).name} takes this program's place, without LMS: {command}. "
            "Have it start the trainer by '-m torch_lms run', or name the trainer here",
            file=sys.stderr,
            flush=True,
        )

    sys.addaudithook(hear)


def _refuse(parser: argparse.ArgumentParser, message: object) -> NoReturn:
    print(f"{parser.prog}: {message}", file=sys.stderr)
    raise SystemExit(2)


def main(arguments: list[str]) -> int:
    """Runs the program; 0 if it has ended by itself. What it raises, its own exit too, passes on.

    Raises:
        SystemExit: status 2 and a line on standard error: wrong arguments or settings, no such
            program, or LMS cannot work here.
    """
    parser = _parser()
    own, program = _split(arguments)
    start = program  # as it is to be told to other processes
    options = parser.parse_args(own)
    if program and program[0] == "-m":
        module, program = (program[1] if len(program) > 1 else ""), program[1:]
    else:
        module = None
    if not program or module == "":
        _refuse(parser, "a program is missing: lms run --limit 12GiB train.py")
    given = {row.name: getattr(options, row.name) for row in _settings.TABLE}
    try:
        path = find_program(program[0]) if module is None else None
        if options.nproc_per_node is not None:
            _ranks.check(options.nproc_per_node, options.device)
        else:
            if options.bind == "on":
                _ranks.bind_to_gpu()
            torch_lms.enable(**given)
            atexit.register(_say_what_happened, os.getpid())
            _say_when_it_leaves()
    except (ProgramError, ValueError, RuntimeError, OSError) as error:
        _refuse(parser, str(error).removeprefix("torch_lms: "))
    if options.nproc_per_node is not None:
        _ranks.launch(options.nproc_per_node, given, start)
        return 0
    if path is not None:
        _run_file(path, program[1:])
    else:
        _run_module(module, program[1:])
    return 0
