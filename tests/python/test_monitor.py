"""What a process that is monitored writes for ``lms top``: whole, its own, off by default."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from stress.children import environment, in_child

import torch_lms
from torch_lms import _monitor

pytestmark = pytest.mark.pinned

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "tools" / "lms" / "lms"


@pytest.fixture
def samples(tmp_path: Path, monkeypatch) -> Path:
    """The folder of the samples, which come every few milliseconds."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(_monitor, "SECONDS", 0.005)
    return tmp_path / "lms"


def eventually(found: Callable[[], object]) -> object:
    """What ``found`` gives once it gives something."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("nothing came")


def sample_of(pid: int, folder: Path) -> dict:
    return eventually(lambda: (folder / f"{pid}.json").is_file() and json.loads(
        (folder / f"{pid}.json").read_text()))  # fmt: skip


def weights(steps: int = 12) -> list[torch.Tensor]:
    """Of a model that has been trained a little, in a fraction of its memory."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(128, 128)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def enable(**more: object) -> None:
    torch_lms.enable(limit="1MiB", min_block="16KiB", device="cpu", plan="now", **more)


def test_it_is_off_unless_it_is_asked_for(samples: Path) -> None:
    enable()
    assert not samples.exists()
    torch_lms.enable(limit="1MiB", device="cpu", monitor=True)
    assert sample_of(os.getpid(), samples)["pid"] == os.getpid()
    enable(monitor=False)
    assert list(samples.iterdir()) == []


def test_a_sample_says_what_is_going_on(samples: Path) -> None:
    enable(monitor=True)
    weights()

    assert torch_lms.memory_stats()["plan.steps"] >= 3
    state = torch_lms._library.ops().plan_state("cpu")

    def newest() -> dict | None:
        found = sample_of(os.getpid(), samples)
        (device,) = found["devices"]
        # The stream of operators has ended: what is said does not change any more.
        return found if device["stats"] == dict(torch_lms.memory_stats()) else None

    found = eventually(newest)
    (device,) = found["devices"]
    assert found["format"] == "lms-monitor" and found["command"] == sys.orig_argv
    assert found["started"] == _monitor.started(os.getpid())
    assert device["device"] == "cpu" and device["settings"]["min_block"] == 16 << 10
    assert device["stats"]["limit"] == 1 << 20 and device["stats"]["bytes_out"] > 0
    assert device["state"] == state
    assert samples.stat().st_mode & 0o777 == 0o700
    assert (samples / f"{os.getpid()}.json").stat().st_mode & 0o777 == 0o600
    torch_lms.disable()
    assert list(samples.iterdir()) == []


def test_bits_are_those_of_a_process_that_is_not_monitored(samples: Path) -> None:
    plain = weights()
    enable(monitor=True)
    seen = sample_of(os.getpid(), samples)["time"]
    mine = weights()
    assert eventually(lambda: sample_of(os.getpid(), samples)["time"] > seen)
    assert torch_lms.memory_stats()["evictions"] > 0
    assert all(torch.equal(one, other) for one, other in zip(plain, mine, strict=True))


def test_rates_and_steps_are_counted() -> None:
    def stats(out: int, steps: int, predicted: int = 500_000) -> dict[str, int]:
        return {"bytes_out": out, "bytes_in": 2 * out, "plan.steps": steps,
                "plan.predicted_us": predicted, "plan.divergences": 0}  # fmt: skip

    rates = _monitor.Rates()
    first = rates.after(10.0, stats(1000, 4))
    assert first == {"out_per_s": None, "in_per_s": None, "step_ms": None, "steps_timed": 0}
    second = rates.after(12.0, stats(5000, 4))
    assert (second["out_per_s"], second["in_per_s"], second["step_ms"]) == (2000, 4000, None)
    assert rates.after(14.0, stats(5000, 9)) == {
        "out_per_s": 0, "in_per_s": 0, "step_ms": 800, "steps_timed": 5
    }  # fmt: skip
    assert rates.after(15.0, stats(5000, 9))["step_ms"] == 800  # the sixth has not ended
    assert rates.after(16.0, stats(5000, 11, predicted=400_000))["step_ms"] is None  # another plan
    assert rates.after(18.0, stats(5000, 15, predicted=400_000))["step_ms"] == 500
    for second in range(20, 200, 2):  # only the last half minute counts
        last = rates.after(float(second), stats(5000, 15 + second, predicted=400_000))
    assert last["step_ms"] == 1000 and last["steps_timed"] <= 32


def test_a_forked_child_has_a_sample_of_its_own(samples: Path) -> None:
    enable(monitor=True)
    sample_of(os.getpid(), samples)
    parent = os.getpid()

    def work() -> bool:
        (samples / f"{os.getpid()}.json").unlink(missing_ok=True)
        torch_lms.disable()
        alone = (samples / f"{parent}.json").exists() and not _monitored_here()
        enable(monitor=True)
        mine = sample_of(os.getpid(), samples)
        right = mine["pid"] == os.getpid() and len(mine["devices"]) == 1
        torch_lms.disable()
        return alone and right and not (samples / f"{os.getpid()}.json").exists()

    def _monitored_here() -> bool:
        return (samples / f"{os.getpid()}.json").exists()

    for _ in range(3):  # the thread is somewhere else each time
        assert in_child(work) == 0
    seen = sample_of(parent, samples)["time"]
    assert eventually(lambda: sample_of(parent, samples)["time"] > seen)


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "lms").mkdir()
    (tmp_path / "lms").chmod(0o777)
    enable(monitor=True)
    assert "is not a folder of this user alone" in caplog.text
    assert torch_lms.is_enabled("cpu") and list((tmp_path / "lms").iterdir()) == []
    (tmp_path / "lms").rmdir()
    (tmp_path / "lms").symlink_to(tmp_path)
    caplog.clear()
    enable(monitor=True)
    assert "is not a folder" in caplog.text


LOOP = """
import sys, time, torch, torch_lms
torch_lms.enable(limit="1MiB", min_block="16KiB", device="cpu", monitor=True)
kept = [torch.ones(128, 128) for _ in range(40)]
sys.stdin.read()
"""


def top(*options: str) -> str:
    ran = subprocess.run([PROGRAM, "top", *options], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def device_in_top(pid: int) -> dict:
    (mine,) = [one for one in json.loads(top("--json"))["processes"] if one["pid"] == pid]
    (device,) = mine["devices"]
    return device


@pytest.mark.skipif(not PROGRAM.is_file(), reason="the program lms is not built (libcli11-dev)")
@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_lms_top_sees_it_as_long_as_it_runs(samples: Path, end: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOOP], stdin=subprocess.PIPE,
                               env=environment())  # fmt: skip
    path = samples / f"{process.pid}.json"
    try:
        eventually(path.is_file)
        assert f"{process.pid}  cpu " in top() and "1.00 MiB" in top("--once")
        assert eventually(lambda: device_in_top(process.pid)["below"] > 0)
        assert device_in_top(process.pid)["limit"] == 1 << 20
    finally:
        if end == "exits":
            process.communicate(timeout=60)
        else:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdin.close()
    assert path.exists() == (end == "is killed")
    if path.exists():
        os.utime(path, (time.time() - 60, time.time() - 60))
    assert f"{process.pid}  cpu " not in top()
    assert not path.exists()
