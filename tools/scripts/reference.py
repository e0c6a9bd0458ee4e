"""Writes docs/reference.md from the code's own tables; with --check says whether it is up to date.

PYTHONPATH=python .venv/bin/python tools/scripts/reference.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from torch_lms import _library, _settings, _statistics

PATH = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

HEAD = """# Reference

Settings, statistics, and what is done with PyTorch's operators. This page is made from the code
(`make reference`); a test fails where the two differ.
"""

SETTINGS = """## Settings

An argument of `enable()` beats its variable, which beats the default. Unknown names and bad values
are errors that name the valid ones. The variables are settings of `enable()`; they do not call it.
`LMS_LIBRARY` names another build of the library.
"""

STATISTICS = """## Statistics

What `torch_lms.memory_stats()` returns, by flat keys. After a name `.current` is now, `.peak` the
most since `reset_peak_memory_stats()`, `.allocated` and `.freed` all that ever came and went.
"""

OPERATORS = """## Operators

What is done with the operators of ATen that have a kernel for CUDA, in PyTorch {version}. A name
stands for its variants: in place, `out=`, and overloads.

An operator is *pinned* unless it is listed here: its tensors are on the device, and stay there,
while it runs. Those of other libraries are pinned as well, and all that they are given counts as
written.
"""

GROUPS = (
    ("left alone", "Left alone: they take no tensor, or look at none of its bytes"),
    ("in parts", "Over lists: pinned, and run in parts where the lists do not fit"),
    ("through its parts", "Seen through the operators that they call"),
    ("kept", "Not understood: what they are given stays on the device until it dies"),
)

AGAIN = """### Computed again

Their results may be dropped and computed again: the kernels are known to repeat their bits. Those
that draw random numbers draw the same ones again.
"""


BINDING = """## The binding

The operators `torch.ops.lms.*`, by which Python, and whoever else knows no C++, calls the library;
`lms/torch.h` has the same functions for C++. A device is a string: `"cuda:0"`, `"cpu"`; `""` means
every one that is managed. Bytes are `int`; -1 means "find it out".
"""

CALLS = {
    "enable": "start managing, with the fields of `lms::torch::Options` by name; where it is "
    "managed already, change the limits",
    "options": "the names of those fields",
    "operators": "what is done with each operator of ATen",
    "disable": "everything returns; hooks go",
    "speak": "whether the library may say something on standard error: the log is on",
    "holders": "how many hold a tensor, or its storage",
    "is_enabled": "",
    "devices": "those that are managed",
    "limit": "in force",
    "min_block": "in force",
    "host_limit": "in force",
    "stats": "[statistics](#statistics), by flat keys",
    "reset_peak": "every peak begins anew",
    "reclaim_inactive": "evict all that is not pinned; the bytes that left",
    "step": "a training step ends here (a hint)",
    "plan_state": "`planned`, or why its steps are not",
    "plan_detour": "where a step last left its plan for a while, and why; empty: none has",
    "wait_for_plan": "until no plan is being made",
    "save_trace": "the step that was learnt last, to a file",
    "save_timeline": "its plan beside what was measured, drawn to a file",
    "emulate_link": "copies take as long as at this rate; 0: as long as they take",
    "access": "a raw use from outside operators: page in, mark written, and keep resident until "
    "the access scope of this thread ends, or, outside a scope, until the storage dies",
    "make_plain": "the storage lies in memory of PyTorch's own from now on, and stays there",
    "keep": "its pointer escapes: resident until the storage dies",
    "make_readable": "its pointer escapes to somebody who only reads",
    "make_all_readable": "code that asks no operator is about to read tensors of the CPU",
    "before_free": "the memory of its storage is about to be given back",
    "unseen_call": "an extension's call begins, or ends, of which no tensor is known",
    "scope_begin": "an access scope of this thread begins; `holds`: what operators use within, too",
    "scope_end": "it ends; `handed` leaves it with the program",
    "state": "of its block: `unmanaged`, `resident`, `absent`, `dropped` (to be computed again) "
    "or `kept` (resident until the storage dies)",
    "evict": "this block now, if it may leave",
    "is_nowhere": "whether it has no address: dropped, on a GPU, or unmade",
    "is_unmade": "whether what makes it waits; or, on a GPU, it has been dropped",
    "may_move": "whether its address may change while it lives: on a GPU, unless it is kept",
    "fetch": "begin to bring this block back, if there is room",
    "clean": "begin to copy this block below, so that it can leave without a copy later",
    "capture_begin": "a graph is captured: what fits comes back, nothing leaves",
    "capture_end": "what the capture has used is kept",
    "need_of": "what an out-of-memory error of LMS with this text is about: `operator`, `bytes`, "
    "`least_limit`, and which memory is `full`, `device` or `below`; empty of other errors",
    "info": "versions, and what was built in",
    "list_pass": "operators over lists that waited, in one pass over memory; LMS's own, and an "
    "error for anybody else",
    "measure_link": "four: GB/s to the host, to the device, and each way with both at once; GiB/s "
    "of pinning",
}


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell for cell in line) + " |\n" for line in lines)


def settings() -> str:
    """One row for each argument of enable()."""
    return table(
        ("argument", "variable", "default", "meaning"),
        [
            (f"`{row.name}`", f"`{row.variable}`", row.default_text, row.doc)
            for row in _settings.TABLE
        ],
    )


def statistics() -> str:
    """One row for each statistic."""
    rows = []
    for row in _statistics.TABLE:
        columns = " ".join(f"`.{column}`" for column in row.columns)
        name = f"`{row.key}`" + (f" {columns}" if columns else "")
        where = {"cuda": " (CUDA)", "cpu": " (CPU)", "": ""}[row.where]
        rows.append((name, row.unit, row.doc + where))
    return table(("key", "unit", "meaning"), rows)


def base_name(name: str) -> str:
    """``add`` of ``aten::add_.Tensor``."""
    short = name.removeprefix("aten::").split(".")[0]
    return short if short.endswith("__") else short.removesuffix("_")


def operators() -> str:
    """The operators by what is done with them."""
    treated: dict[str, set[str]] = {}
    for fact in _library.ops().operators("cuda"):
        name, _, treatment = fact.partition(": ")
        for word in treatment.split(", "):
            treated.setdefault(word, set()).add(base_name(name))
    listed = []
    for word, title in GROUPS:
        if names := treated.get(word):
            listed.append(f"### {title}\n\n{paragraph(names)}")
    listed.append(f"{AGAIN}\n{paragraph(treated['may run again'])}")
    return "\n".join(listed)


def binding() -> str:
    """One row for each operator of the library."""
    rows = {}
    for schema in torch._C._jit_get_all_schemas():
        library, _, name = schema.name.partition("::")
        if library == "lms":
            rows[name] = (f"`{str(schema).removeprefix('lms::')}`", CALLS.get(name, "?"))
    assert rows.keys() == CALLS.keys(), f"CALLS: {rows.keys() ^ CALLS.keys()}"
    return table(("operator", "meaning"), [rows[name] for name in CALLS])


def paragraph(names: set[str]) -> str:
    """Names side by side, in lines of a readable length."""
    lines = [""]
    for name in sorted(names):
        word = f"`{name}` "
        if len(lines[-1]) + len(word) > 110:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines) + "\n"


def page() -> str:
    """The whole page."""
    version = ".".join(torch.__version__.split(".")[:2])
    _library.ops()
    parts = (HEAD, SETTINGS, settings(), STATISTICS, statistics(), BINDING, binding())
    return "\n".join((*parts, OPERATORS.format(version=version), operators()))


def main() -> int:
    """The script."""
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PATH.read_text() == text:
            return 0
        print(f"{PATH} is not what the code says: make reference", file=sys.stderr)
        return 1
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
