"""Programs of others, started as a user starts them: plain, and by ``lms run`` at half their peak.

    tools/scripts/venv_on_top.sh .venv-started tools/requirements/started.txt
    .venv-started/bin/python lab/bench/started.py --timm-train train.py --out started.json
    tools/scripts/venv_on_top.sh .venv-started-more tools/requirements/started-more.txt
    .venv-started-more/bin/python lab/bench/started.py --only 'nnunet*,axolotl*' --out started.json
    python lab/bench/started.py --table started.json

Each row runs on the CPU in a folder of its own, with tiny data made for it, three times: plain;
with room for everything, which tells its peak; and at half of that. What the first and the last
have left is compared, bit by bit. Where they differ, a second plain run says whether the program
repeats itself. Nothing of the packages is imported here. A record keeps the rows that are not
measured: with --only it is added to.

timm's train.py is not in its wheel: it lies in the root of
https://github.com/huggingface/pytorch-image-models (Apache-2.0); a record names its blob in git.
ultralytics saves weights only averaged and in half precision: started_weights.py saves them as
training has left them. Two would not repeat themselves: nnU-Net seeds nothing, and is given
trainers of started_nnunet.py's, which do; axolotl draws LoRA's first weights before it seeds, and
started_seed.py has seeded by then.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records, started_files
from bench.records import Record
from bench.started_rows import Row, rows

ROOM = "1TiB"
VARIABLES = {
    "LMS_DEVICE": "cpu",
    "LMS_PLAN_CACHE": "off",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "YOLO_OFFLINE": "true",
}
_LMS = "python -m torch_lms run --limit {limit} --min-block 65536 --log info --"
# Said again by a logger of the program's, without the name.
_SAID = re.compile(
    r"^torch_lms: .* at most ([\d.]+) (\w+) of tensors .* (\d+) steps ran under a plan"
)
_UNITS = {"B": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}
_HERE = Path(__file__).resolve().parent
_SECONDS = 3600
_LAST_LINES = 40


# ---- running


class Failed(Exception):
    """A program has not ended well, or has not left what it was to leave."""

    def __init__(self, run: str, why: int | str, output: str) -> None:
        super().__init__(f"{run}: {why}")
        self.facts = {"failed": run, "exit": why, "output": output.splitlines()[-_LAST_LINES:]}


def _words(command: str, limit: str | None) -> list[str]:
    """The command line as this interpreter has it."""
    program, *arguments = shlex.split(command)
    if limit is not None:
        start = shlex.split(_LMS.format(limit=limit))
        return [sys.executable, *start[1:], program, *arguments]
    if "=" in program:
        return ["env", program, *_words(shlex.join(arguments), None)]
    if program == "-m" or program.endswith(".py"):
        return [sys.executable, program, *arguments]
    return [str(Path(sys.executable).parent / program), *arguments]


def _variables(row: Row, here: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LMS_")}
    paths = [str(here / ".beside"), str(records.ROOT / "python")]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    made = kept | VARIABLES | row.variables | {"PYTHONPATH": os.pathsep.join(paths)}
    made |= dict.fromkeys(("HF_HOME", "YOLO_CONFIG_DIR"), str(here / ".settings"))
    if "LMS_LIBRARY" in os.environ:
        made["LMS_LIBRARY"] = os.environ["LMS_LIBRARY"]
    return made


def _laid_out(row: Row, here: Path) -> None:
    """Makes the folder of a run, but for what programs of the row's put into it."""
    shutil.rmtree(here, ignore_errors=True)
    for folder in (".beside", ".settings"):
        (here / folder).mkdir(parents=True)
    row.data(here)
    for script, path in row.scripts.items():
        (here / script).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, here / script)
    if row.site:
        shutil.copyfile(_HERE / row.site, here / ".beside" / "sitecustomize.py")


def _run(row: Row, scratch: Path, name: str, limit: str | None = None) -> tuple[float, str]:
    """Seconds and output of a run, whose folder has that name afterwards. While it runs it is
    ``here``: paths are the same each time."""
    here = scratch / "here"
    _laid_out(row, here)
    commands = [*(_words(each, None) for each in row.before), _words(row.command, limit)]
    seconds = status = 0
    with open(scratch / f"{name}.log", "w+", errors="replace") as log:
        for words in commands:
            start = time.perf_counter()
            try:
                status = subprocess.run(
                    words, cwd=here, env=_variables(row, here), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, timeout=_SECONDS,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                status = f"not ended after {_SECONDS} s"
            except OSError as error:
                status = str(error)
            seconds = time.perf_counter() - start
            if status != 0:
                break
        log.seek(0)
        output = log.read()
    shutil.rmtree(scratch / name, ignore_errors=True)
    here.rename(scratch / name)
    if status != 0:
        raise Failed(name, status, output)
    return round(seconds, 1), output


def _said(name: str, output: str) -> tuple[str, float, int]:
    """LMS's last line, and in it the peak in MiB and the planned steps."""
    found = [line for line in output.splitlines() if _SAID.search(line)]
    if len(found) != 1:
        raise Failed(name, f"LMS has said {len(found)} times what happened", output)
    amount, unit, steps = _SAID.search(found[0]).groups()
    return found[0].removeprefix("torch_lms: "), float(amount) * _UNITS[unit], int(steps)


def _left_out(row: Row) -> str | None:
    for name, path in row.scripts.items():
        if path is None or not path.is_file():
            return f"{name} was not given"
    try:
        version(row.package or "torch")
    except PackageNotFoundError:
        return f"{row.package} is not installed"
    return None


def _blob(text: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


def _compared(row: Row, scratch: Path) -> Record:
    plain = scratch / "plain"
    found = started_files.compare(row.compared, plain, scratch / "lms")
    made = {"equal": started_files.all_equal(found), "compared": found}
    if not made["equal"]:
        _run(row, scratch, "again")
        again = started_files.compare(row.compared, plain, scratch / "again")
        made["plain_repeats"] = started_files.all_equal(again)
    return made


def measure(row: Row, scratch: Path) -> Record:
    """The record of a row; why it was left out, or how it failed, where it has."""
    made: Record = {"name": row.name, "program": row.package, "command": row.command}
    made |= {"settings": row.settings, "batches": row.batches}
    why = _left_out(row)
    if why is not None:
        return made | {"left_out": why}
    made["version"] = version(row.package) if row.package else None
    if row.before or row.variables:
        made |= {"before": list(row.before), "variables": row.variables}
    beside = row.scripts | ({row.site: _HERE / row.site} if row.site else {})
    if beside:
        made["blobs"] = {name: _blob(path.read_bytes()) for name, path in beside.items()}
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        made["seconds_plain"], _ = _run(row, scratch, "plain")
        _, output = _run(row, scratch, "peak", ROOM)
        _, peak, _ = _said("peak", output)
        limit = f"{peak / 2:.1f}MiB"
        made |= {"lms": f"{_LMS.format(limit=limit)} {row.command}", "peak_mib": peak}
        made["limit_mib"] = float(limit.removesuffix("MiB"))
        made["seconds_lms"], output = _run(row, scratch, "lms", limit)
        made["said"], _, made["plan_steps"] = _said("lms", output)
        made["exit"] = 0
        try:
            made |= _compared(row, scratch)
        except (OSError, ValueError) as error:
            raise Failed("compare", str(error), output) from error
    except Failed as failure:
        made |= failure.facts
    return made


# ---- the page's table


def _cells(row: Record) -> list[str]:
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["settings"].items())
    start = [f"{row['program']} {row.get('version', '')}".strip(), f"`{row['command']}`", facts]
    if "equal" not in row:
        why = row.get("left_out") or f"{row['failed']} failed: {row['exit']}"
        return [*start, "", str(row["batches"]), "", why, ""]
    parts = [f"{each['equal']} of {each['tensors']} {what}"
             for what, each in row["compared"].items()]  # fmt: skip
    return [
        *start,
        f"{row['peak_mib']:.1f}, {row['limit_mib']:.1f} MiB",
        str(row["batches"]),
        str(row["plan_steps"]),
        "; ".join(parts),
        f"{row['seconds_plain']:.0f}, {row['seconds_lms']:.0f} s",
    ]


def table(record: Record) -> str:
    """The rows of a record in Markdown."""
    heads = ["program", "command", "settings", "peak, limit", "batches", "`plan.steps`"]
    heads += ["equal tensors", "plain, LMS"]
    lines = [heads, ["---"] * len(heads), *(_cells(row) for row in record["rows"])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# ---- the record


def begun(path: Path | None, only: bool) -> Record:
    """The record that rows go to: that of the file, where they are not all there are.

    Raises:
        ValueError: the file's is of another machine, or has other variables.
    """
    made: Record = {"machine": records.machine("cpu"), "variables": VARIABLES, "rows": []}
    if path is None or not only or not path.exists():
        return made
    kept = json.loads(path.read_text())
    for key, what in (("machine", "another machine"), ("variables", "other variables")):
        if kept[key] != made[key]:
            raise ValueError(f"{path} has {what}")
    return kept


def add(record: Record, row: Record, names: list[str]) -> None:
    """Puts a row into the place of the one of its name, in the order of names."""
    others = [each for each in record["rows"] if each["name"] != row["name"]]
    order = {name: at for at, name in enumerate(names)}
    record["rows"] = sorted([*others, row], key=lambda each: order.get(each["name"], len(order)))


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="names or patterns")
    parser.add_argument("--timm-train", type=Path, help="timm's train.py")
    parser.add_argument("--scratch", type=Path, help="kept; by default a folder that goes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="prints the table of this record, runs nothing")
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.table.read_text())))
        return
    all_rows = rows(given.timm_train)
    names = [row.name for row in all_rows]
    chosen = set()
    for pattern in given.only or ["*"]:
        found = fnmatch.filter(names, pattern)
        if not found:
            parser.error(f"no such row: {pattern}")
        chosen |= set(found)
    try:
        record = begun(given.out, bool(given.only))
    except ValueError as error:
        parser.error(str(error))
    commit, dirty = records.commit()
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = (given.scratch or Path(folder)).resolve()
        for row in all_rows:
            if row.name not in chosen:
                continue
            made = measure(row, scratch / row.name) | {"commit": commit, "commit_dirty": dirty}
            measured.append(made)
            print(json.dumps(made, indent=1), flush=True)
            add(record, made, names)
            if given.out:
                records.write(record, given.out)
    sys.exit(any(not row.get("equal", "left_out" in row) for row in measured))


if __name__ == "__main__":
    main()
