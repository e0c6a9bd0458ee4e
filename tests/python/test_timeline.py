"""A planned step is drawn: what was predicted, and beside it what was measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from stress import harness
from test_plan_loops import LIMIT, _model, _step

import torch_lms

pytestmark = pytest.mark.pinned


@pytest.fixture
def managed() -> Iterator[None]:
    with torch_lms.managed(
        device="cpu", limit=LIMIT, min_block=4096, plan="now", plan_seconds=0.05
    ):
        yield


def _train(until: str | None = None, steps: int = 24) -> None:
    """Trains for some steps; or until the statistic `until` is no longer 0."""
    net, optimizer = _model()
    for _ in range(steps):
        _step(net, optimizer, 256)
        if until is not None and torch_lms.memory_stats("cpu")[until] > 0:
            return
    assert until is None, f"{until} is still 0"


def _events(document: dict[str, Any], process: str) -> list[dict[str, Any]]:
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return [e for e in events if names[e["pid"]] == process]


def _spans(document: dict[str, Any], process: str, category: str) -> list[dict[str, Any]]:
    events = _events(document, process)
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


def _blocks_in(copies: list[dict[str, Any]]) -> list[int]:
    return sorted(e["args"]["block"] for e in copies if e["tid"] == 3)


def test_measured_beside_predicted(managed: None, tmp_path: Path) -> None:
    _train()
    path = tmp_path / "step.json"
    torch_lms.save_timeline(path)
    document = json.loads(path.read_text())
    predicted = _spans(document, "predicted", "operator")
    measured = _spans(document, "measured", "operator")
    assert [e["name"] for e in measured] == [e["name"] for e in predicted]
    end = measured[-1]["ts"] + measured[-1]["dur"]
    assert end > 0
    for before, after in zip(measured, measured[1:], strict=False):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    copies = _spans(document, "measured", "copy")
    assert sum(e["args"]["bytes"] for e in copies) > 0
    assert {e["tid"] for e in copies} == {2, 3}, "both lanes"
    assert all(0 <= e["ts"] <= e["ts"] + e["dur"] <= end + 1e-3 for e in copies)
    # On the CPU the computation stands still for every copy.
    waits = sum(e["dur"] for e in _spans(document, "measured", "wait"))
    assert waits >= 0.9 * sum(e["dur"] for e in copies)
    # The very blocks come back that the plan has come back.
    assert _blocks_in(copies)
    assert _blocks_in(copies) == _blocks_in(_spans(document, "predicted", "copy"))


def test_a_plan_that_was_not_measured_yet_is_drawn_alone(managed: None, tmp_path: Path) -> None:
    _train(until="plan.planned")
    path = tmp_path / "step.json.gz"
    torch_lms.save_timeline(str(path), "cpu")
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert _events(document, "predicted")
    assert not _events(document, "measured")


def test_a_still_picture(managed: None, tmp_path: Path) -> None:
    _train()
    path = tmp_path / "step.svg"
    torch_lms.save_timeline(path)
    text = path.read_text()
    assert text.startswith("<svg")
    assert ">predicted<" in text and ">measured<" in text


def test_without_a_plan_there_is_nothing_to_draw(managed: None, tmp_path: Path) -> None:
    path = tmp_path / "step.svg"
    with pytest.raises(RuntimeError, match=r"no step has been planned yet.*wait_for_plan"):
        torch_lms.save_timeline(path)
    assert not path.exists()


def test_a_device_that_is_not_managed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="managed"):
        torch_lms.save_timeline(tmp_path / "step.svg", "cpu")


def test_where_nothing_can_be_written(managed: None, tmp_path: Path) -> None:
    _train(until="plan.planned")
    with pytest.raises(RuntimeError, match="missing"):
        torch_lms.save_timeline(tmp_path / "missing" / "step.svg")


@pytest.mark.gpu
def test_on_a_gpu_with_its_memory(tmp_path: Path) -> None:
    room = 256 << 20
    limit = harness.held("cuda") + room  # tests before this one have left something there
    path = tmp_path / "step.json"
    with torch_lms.managed(device="cuda", limit=limit, plan="now", plan_seconds=0.2):
        weights = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(24)]
        for _ in range(24):
            x = torch.randn(4096, 1024, device="cuda")
            for weight in weights:
                x = torch.tanh(x @ weight)
            x.square().mean().backward()
            for weight in weights:
                weight.grad = None
        torch_lms.save_timeline(path)
        del weights, x, weight
    document = json.loads(path.read_text())
    assert len(_spans(document, "measured", "operator")) > 48
    for lane in (2, 3):
        copies = [e for e in _spans(document, "measured", "copy") if e["tid"] == lane]
        assert copies
        copies.sort(key=lambda e: e["ts"])
        for before, after in zip(copies, copies[1:], strict=False):
            assert before["ts"] + before["dur"] <= after["ts"] + 5, "a lane copies in order"
        rates = [e["args"]["GB/s"] for e in copies if e["args"]["bytes"] >= 8 << 20]
        assert all(0.5 < rate < 2000 for rate in rates), rates
    counters = [e for e in _events(document, "measured") if e["name"] == "device memory"]
    most = max(e["args"]["bytes"] for e in counters)
    assert room / 2 < most <= limit
