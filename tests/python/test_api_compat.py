"""Scripts written for the earlier PyTorch LMS run unchanged (on the CPU where there is no CUDA)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_lms
from torch_lms import compat

MIB = 1 << 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SCRIPT = """
import torch
torch.cuda.set_enabled_lms(True)
torch.cuda.set_limit_lms(64 << 20)
torch.cuda.set_size_lms(1 << 10)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 15))
model = model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 256).to(DEVICE)).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.reclaim_inactive()
enabled = torch.cuda.get_enabled_lms()
reclaimed = torch.cuda.memory_reclaimed()
loss = loss.item()
torch.cuda.set_enabled_lms(False)
"""


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compat, "_limit", 0)
    monkeypatch.setattr(compat, "_size", None)
    monkeypatch.setattr(compat, "_reclaimed_before", {})
    yield


def run(script: str) -> dict[str, object]:
    names: dict[str, object] = {"DEVICE": DEVICE}
    exec(script, names)  # noqa: S102
    return names


def test_a_script_runs_unchanged_with_the_same_loss() -> None:
    managed = run(SCRIPT)
    assert managed["enabled"] is True
    assert managed["reclaimed"] > 0
    assert not torch_lms.is_enabled()
    plain = run("\n".join(line for line in SCRIPT.splitlines() if "torch.cuda." not in line))
    assert managed["loss"] == plain["loss"]


def test_defaults() -> None:
    assert torch.cuda.get_enabled_lms() is False
    assert torch.cuda.get_limit_lms() == 0
    assert torch.cuda.get_size_lms() == MIB


@pytest.mark.parametrize("order", ["enable first", "limit first", "between"])
def test_any_order(order: str) -> None:
    if order == "enable first":
        torch.cuda.set_enabled_lms(True)
    torch.cuda.set_limit_lms(96 * MIB)
    if order == "between":
        torch.cuda.set_enabled_lms(True)
    torch.cuda.set_size_lms(4096)
    if order == "limit first":
        torch.cuda.set_enabled_lms(True)
    assert torch.cuda.get_enabled_lms() is True
    assert torch.cuda.get_limit_lms() == torch_lms.get_limit() == 96 * MIB
    assert torch.cuda.get_size_lms() == torch_lms.get_min_block() == 4096
    torch.cuda.set_enabled_lms(False)
    assert torch.cuda.get_enabled_lms() is False
    assert torch.cuda.get_limit_lms() == 96 * MIB


def test_zero_is_automatic() -> None:
    torch.cuda.set_limit_lms(0)
    torch.cuda.set_enabled_lms(True)
    assert torch_lms.get_limit() > 0


def test_bad_limit_changes_nothing() -> None:
    torch.cuda.set_limit_lms(96 * MIB)
    with pytest.raises(ValueError):
        torch.cuda.set_limit_lms(-1)
    assert torch.cuda.get_limit_lms() == 96 * MIB


def test_counters() -> None:
    assert torch.cuda.memory_active() == 0 and torch.cuda.memory_reclaimed() == 0
    torch.cuda.set_limit_lms(64 * MIB)
    torch.cuda.set_enabled_lms(True)
    block = torch.ones(2 * MIB, device=DEVICE).add_(1)
    block.mul_(2)
    assert torch.cuda.memory_active() == 0  # no operator is running
    assert torch.cuda.max_memory_active() >= 8 * MIB
    torch.cuda.reclaim_inactive()
    assert torch.cuda.memory_reclaimed() >= 8 * MIB
    torch.cuda.reset_memory_reclaimed()
    assert torch.cuda.memory_reclaimed() == 0
    torch.cuda.reset_max_memory_active()
    assert torch.cuda.max_memory_active() == 0
    assert block[0].item() == 4
