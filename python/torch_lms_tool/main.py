"""``lms``: ``run`` and ``doctor`` are Python's; all other commands are those of the compiled
program that the package brings."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "bin" / "lms"
OWN = {
    "run": "run a Python program under LMS: lms run --limit 12GiB train.py",
    "doctor": "versions, rates and limits of this machine, and a self-test",
}
FAILED = 2


def version() -> str:
    """The package's version."""
    package = importlib.util.find_spec("torch_lms")
    folder = Path(next(iter(package.submodule_search_locations)))
    return re.search(r'__version__ = "(.+)"', (folder / "_version.py").read_text()).group(1)


def environment() -> dict[str, str]:
    """The program's environment: it finds the solver that `pip install highspy` brings."""
    environ = dict(os.environ)
    solver = importlib.util.find_spec("highspy")
    if "LMS_HIGHS" not in environ and solver is not None:
        for folder in solver.submodule_search_locations or ():
            for path in Path(folder).glob("libhighs.so.?"):
                environ["LMS_HIGHS"] = str(path)
    return environ


def own_help() -> str:
    """The lines about Python's commands."""
    return "".join(f"  {name:<10}{text}\n" for name, text in OWN.items())


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; its exit status (2: there is no such command, or it cannot be run)."""
    given = sys.argv[1:] if arguments is None else arguments
    command = given[0] if given else ""
    if command == "run":
        from torch_lms._run import main as run

        return run(given[1:])
    if command == "doctor":
        from torch_lms.doctor import main as doctor

        return doctor(given[1:])
    if command in ("--version", "-V"):
        print(f"lms {version()}")
        return 0
    if not PROGRAM.is_file():
        if command not in ("", "-h", "--help"):
            print(
                f"lms: there is no command {command!r} in this installation: plan, trace, top "
                "and report need CLI11 when the package is built (libcli11-dev); wheels have "
                "them.\n"
                f"There are:\n{own_help()}",
                end="",
                file=sys.stderr,
            )
            return FAILED
        print(f"usage: lms COMMAND ...\n{own_help()}", end="")
        return 0 if command else FAILED
    os.execve(PROGRAM, ["lms", *given], environment())
