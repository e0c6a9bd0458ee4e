"""Random programs under LMS: the same bits as in plain PyTorch, no crash, nothing left behind.

``make attack`` runs more of them. Each runs in a process of its own: this one may have threads,
and may have managed its memory before.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import forked
import pytest
import torch
from attack import counts, execute, templates
from attack.races import races
from attack.world import namespace, on_stream

pytestmark = pytest.mark.pinned

HERE = Path(__file__).resolve().parent
PROGRAMS = 200


def attack(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the suite; failures are kept in ``folder``."""
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1] / "python")])
    command = [*forked.command(), "-m", "attack", "--failures", str(folder), *options]
    return subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1500,
    )


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_programs(tmp_path: Path, device: str) -> None:
    """What once failed, and fixed seeds: all the same, and most of them did not need more room."""
    done = attack(tmp_path, "--programs", str(PROGRAMS), "--jobs", "2", "--device", device)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    same = re.search(r"'same': (\d+)", done.stdout)
    assert same and int(same.group(1)) > PROGRAMS * 0.7, done.stdout
    counted = re.search(r"'evictions': (\d+)", done.stdout)
    assert counted and int(counted.group(1)) > PROGRAMS, done.stdout
    sliced = re.search(r"'slices.operators': (\d+)", done.stdout)
    assert sliced and int(sliced.group(1)) > PROGRAMS, done.stdout


PROGRAM = {
    "seed": 1,
    "settings": {"limit": 1 << 20, "plan": "off"},
    "prelude": ["t0 = fresh(1, 2000)", "t1 = t0 * 2", "t2 = t1 + t0", "del t1", "check()"],
}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("bits", "t2[7] += float(len(torch.ops.lms.devices()))"),
        ("raises", "t2[5000 * len(torch.ops.lms.devices())] = 1"),
        ("crash", "len(torch.ops.lms.devices()) and os.abort()"),
        ("hang", "while torch.ops.lms.devices(): time.sleep(0.01)"),
    ],
)
def test_failures_are_found_and_shrunk(tmp_path: Path, kind: str, line: str) -> None:
    """A line that behaves in another way under LMS is found, and hardly anything else is left."""
    lines = ["import os, time", *PROGRAM["prelude"], line, "t3 = t2 * 2"]
    path = tmp_path / "program.json"
    path.write_text(json.dumps({"program": PROGRAM | {"prelude": lines}}))
    done = attack(
        tmp_path, "--file", str(path), "--shrink", "--timeout", "3", "--shrink-seconds", "20"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    record = json.loads((tmp_path / f"{kind}-1-kept.json").read_text())
    assert record["kind"] == kind
    left = record["program"]["prelude"]
    assert line in left and len(left) < len(lines), left


def test_sizes_beyond_the_memory_are_let_go(tmp_path: Path) -> None:
    """A ``resize_`` that fails leaves them in plain PyTorch, too: who writes there may crash."""
    lines = ["import numpy", *PROGRAM["prelude"], "t3 = torch.from_numpy(numpy.zeros(9))"]
    lines += ["t3.resize_(1 << 24)", "t3.add_(1)"]
    path = tmp_path / "program.json"
    path.write_text(json.dumps({"program": PROGRAM | {"prelude": lines}}))
    done = attack(tmp_path, "--file", str(path))
    assert "{'same': 1}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("t0[1:].add_(t0[:-1])", True),
        ("t0[1:].add_(t1[:-1])", False),
        ("t0.sub_(v0[-1:])", True),
        ("t0.sub_(t0[-1:].clone())", False),
        ("t0.mul_(t0)", False),
        ("t0.mT.mul_(t0.mT)", False),
        ("t0.mT.mul_(t0)", True),
        ("t0.copy_(v0)", True),
        ("torch.sin(t0.detach(), out=t0.mT)", True),
        ("torch.sin(t1.detach(), out=t0.mT)", False),
        ("t0[..., ::2].mul_(2)", False),
    ],
)
def test_lines_that_race_with_themselves(code: str, expected: bool) -> None:
    t0 = torch.ones(4, 4)
    assert races(code, {"t0": t0, "v0": t0.t(), "t1": torch.ones(4, 4)}) == expected


def test_no_seed_is_left_out(tmp_path: Path) -> None:
    """Also where a batch ends."""
    done = attack(tmp_path, "--seeds", "--programs", "5", "--batch", "2")
    assert done.stdout.startswith("5 programs"), done.stdout + done.stderr


def test_lines_call_what_there_is() -> None:
    """A name that is missing would be an error in both runs, and the line would attack nothing."""
    known = set(namespace("cpu")) | set(dir(builtins)) | set(dir(execute.Run))
    kinds = [getattr(templates, name) for name in dir(templates) if name.isupper()]
    for lines in kinds:
        for _, line in lines if isinstance(lines, list) else []:
            called = set(re.findall(r"(?<![\w.}])([A-Za-z_]\w*)[.(]", line))
            called -= set(re.findall(r"lambda (\w+)", line))
            assert called <= known, f"{line}: {called - known}"


@pytest.mark.parametrize("recorded", [False, True])
def test_a_side_stream_is_waited_for(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error on the way would be one in both runs, and a race thereafter."""
    main, side, value, result = Mock(), Mock(), Mock(), Mock()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    for tensor in (value, result):
        tensor.is_conj.return_value = tensor.is_neg.return_value = False
    assert on_stream(side, lambda _: result, value, recorded) is result
    side.wait_stream.assert_called_once_with(main)
    main.wait_stream.assert_called_once_with(side)
    assert value.record_stream.called is result.record_stream.called is recorded


def test_a_seed_makes_one_program(tmp_path: Path) -> None:
    """A failure's seed is all that is needed to make it again."""
    first = attack(tmp_path, "--show", "--first", "11", "--programs", "3")
    second = attack(tmp_path, "--show", "--first", "11", "--programs", "3")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and first.stdout.count("torch_lms.enable") == 3


def counted(path: Path, **words: object) -> Path:
    """A file as ``--json`` writes them."""
    record = {"device": "cpu", "machine": "a machine", "commit": "c0ffee", "first": 0}
    record |= {"programs": 10, "seconds": 1.4, "verdicts": {"same": 9, "hang": 1}}
    record |= {"counted": {"evictions": 7}, "failing": [{"seed": "3", "verdict": "hang"}]}
    path.write_text(json.dumps(record | words))
    return path


def test_counts_of_runs_are_summed(tmp_path: Path) -> None:
    """By device and commit; what somebody wrote beside them is there after the next run, too."""
    one = counted(tmp_path / "1.json")
    two = counted(tmp_path / "2.json", first=10, failing=[], verdicts={"same": 10})
    three = counted(tmp_path / "3.json", device="cuda", failing=[])
    rows = counts.merge([two, one])
    (row,) = rows["runs"]
    assert (row["first"], row["programs"], row["seconds"]) == (0, 20, 3)
    assert (row["verdicts"], row["counted"]) == ({"hang": 1, "same": 19}, {"evictions": 14})
    row["failing"]["3"] += ": it waited for itself"
    row["note"] = "by hand"
    known = tmp_path / "known.json"
    known.write_text(json.dumps(rows))
    again = counts.merge([known, counted(tmp_path / "4.json", first=20, failing=[]), three])["runs"]
    assert [(one["device"], one["programs"]) for one in again] == [("cpu", 30), ("cuda", 10)]
    assert again[0]["failing"] == {"3": "hang: it waited for itself"}
    assert again[0]["note"] == "by hand" and "note" not in again[1]


def test_no_run_is_counted_twice(tmp_path: Path) -> None:
    """Nor are files of something else."""
    one = counted(tmp_path / "1.json")
    with pytest.raises(SystemExit, match="the run from seed 0 on is in .*1.json already"):
        counts.merge([one, counted(tmp_path / "2.json")])
    one.write_text('{"device": "cpu"}')
    with pytest.raises(SystemExit, match="1.json: no counts of random programs without commit"):
        counts.merge([one])


def test_a_run_says_where_it_ran(tmp_path: Path) -> None:
    """So that its file can be summed with others."""
    path = tmp_path / "run.json"
    attack(tmp_path, "--seeds", "--programs", "3", "--json", str(path))
    done = attack(tmp_path, "--merge", str(path), "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())["runs"]
    assert row["programs"] == 3 and row["machine"] and row["commit"]
