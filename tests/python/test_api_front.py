"""Every function of the front, on the CPU."""

from __future__ import annotations

import logging
from collections import OrderedDict

import pytest
import torch

import torch_lms
from torch_lms import _access, _library
from torch_lms._built_for import release_of

MIB = 1 << 20


def test_versions_agree() -> None:
    info = _library.ops().info()
    assert info["lms_version"] == torch_lms.__version__
    assert release_of(info["torch_version"]) == release_of(torch.__version__)


def test_enable_and_disable() -> None:
    assert not torch_lms.is_enabled()
    torch_lms.enable(limit="64MiB", device="cpu")
    assert torch_lms.is_enabled() and torch_lms.is_enabled("cpu")
    assert torch_lms.devices() == ["cpu"]
    assert torch_lms.get_limit() == 64 * MIB
    assert torch_lms.get_min_block() == MIB
    torch_lms.disable()
    torch_lms.disable()
    assert not torch_lms.is_enabled() and not torch_lms.is_enabled("cpu")
    assert torch_lms.devices() == []
    with pytest.raises(RuntimeError, match="enable"):
        torch_lms.get_limit()


def test_enable_twice_changes_the_limits() -> None:
    torch_lms.enable(limit="64MiB", min_block="2MiB", device="cpu")
    torch_lms.enable(limit="32MiB", host_limit="512MiB", device="cpu")
    assert torch_lms.get_limit() == 32 * MIB
    assert torch_lms.get_host_limit() == 512 * MIB
    torch_lms.enable(limit="32MiB", min_block="4KiB", device="cpu")
    assert torch_lms.get_min_block() == 4096
    torch_lms.enable(limit="32MiB", device="cpu")
    assert torch_lms.get_min_block() == 4096  # never larger while managed
    assert torch_lms.devices() == ["cpu"]
    torch_lms.disable()
    assert not torch_lms.is_enabled()


def test_a_limit_is_found() -> None:
    torch_lms.enable(device="cpu")
    assert 0 < torch_lms.get_limit() <= torch_lms._machine.host_memory()


def test_managed_restores_the_state_before() -> None:
    with torch_lms.managed(limit="64MiB", device="cpu"):
        with torch_lms.managed(limit="32MiB", min_block="4KiB", device="cpu"):
            assert torch_lms.get_limit() == 32 * MIB
            assert torch_lms.get_min_block() == 4096
        assert torch_lms.get_limit() == 64 * MIB
        assert torch_lms.get_min_block() == 4096  # never larger while managed
    assert not torch_lms.is_enabled()
    assert not _access.is_installed()


def test_managed_restores_stress() -> None:
    with torch_lms.managed(limit="64MiB", min_block=1, device="cpu"):
        with torch_lms.managed(limit="64MiB", min_block=1, device="cpu", stress=True):
            torch.ones(4096).add_(1).mul_(2)
            assert torch_lms.memory_stats()["evictions"] > 0
        before = torch_lms.memory_stats()["evictions"]
        torch.ones(4096).add_(1).mul_(2)
        assert torch_lms.memory_stats()["evictions"] == before


def test_managed_restores_after_an_exception() -> None:
    with pytest.raises(KeyError), torch_lms.managed(limit="64MiB", device="cpu"):
        raise KeyError
    assert not torch_lms.is_enabled()


def test_a_refused_managed_leaves_the_state() -> None:
    torch_lms.enable(limit="64MiB", device="cpu")
    with pytest.raises(ValueError), torch_lms.managed(limit="no", device="cpu"):
        pytest.fail("the block must not run")
    assert torch_lms.get_limit() == 64 * MIB


def test_stats_count_what_happens() -> None:
    assert torch_lms.memory_stats() == OrderedDict()
    torch_lms.enable(limit="16MiB", device="cpu")
    blocks = [torch.full((MIB,), float(n)) for n in range(8)]  # 4 MiB each: twice the limit
    sums = [block.mul_(2).sum().item() for block in blocks]
    assert sums == [2.0 * n * MIB for n in range(8)]
    stats = torch_lms.memory_stats()
    assert isinstance(stats, OrderedDict) and list(stats) == sorted(stats)
    assert all(isinstance(value, int) for value in stats.values())
    for tier in ("device", "host", "file"):
        for column in ("current", "peak", "allocated"):
            assert f"{tier}.bytes.{column}" in stats
    assert stats["device.bytes.freed"] > 0
    assert stats["host.bytes.current"] == 0  # below the CPU is a file
    assert stats["limit"] == 16 * MIB
    assert stats["evictions"] > 0 and stats["page_ins"] > 0
    assert stats["bytes_out"] >= 16 * MIB and stats["bytes_in"] > 0
    assert stats["device.bytes.current"] <= 16 * MIB
    assert stats["file.bytes.current"] >= 16 * MIB
    assert stats["device.bytes.peak"] >= stats["device.bytes.current"]


def test_peaks_can_be_reset() -> None:
    torch_lms.enable(limit="64MiB", device="cpu")
    block = torch.ones(8 * MIB // 4).add_(1)
    held = torch_lms.memory_stats()["device.bytes.peak"]
    assert held >= 8 * MIB
    del block
    torch_lms.reset_peak_memory_stats()
    assert torch_lms.memory_stats()["device.bytes.peak"] < held


def test_reclaim_inactive() -> None:
    assert torch_lms.reclaim_inactive() == 0  # nothing is managed
    torch_lms.enable(limit="64MiB", device="cpu")
    block = torch.arange(2 * MIB, dtype=torch.float32)
    block.add_(1)
    assert torch_lms.reclaim_inactive() >= 8 * MIB
    assert torch.ops.lms.state(block) == "absent"
    assert torch_lms.reclaim_inactive() == 0
    assert block[-1].item() == 2 * MIB
    assert torch.ops.lms.state(block) == "resident"


def test_disable_brings_bytes_back() -> None:
    torch_lms.enable(limit="64MiB", device="cpu")
    block = torch.arange(2 * MIB, dtype=torch.float32)
    block.mul_(3)
    assert torch_lms.reclaim_inactive() > 0
    torch_lms.disable()
    assert torch.equal(block, torch.arange(2 * MIB, dtype=torch.float32) * 3)


def test_summary() -> None:
    assert "nothing is managed" in torch_lms.memory_summary()
    torch_lms.enable(limit="48MiB", device="cpu")
    block = torch.ones(MIB).add_(1)
    torch_lms.reclaim_inactive()
    text = torch_lms.memory_summary()
    assert len({len(line) for line in text.splitlines()}) == 1  # a table with straight edges
    assert "device cpu" in text and "48.0 MiB" in text and "evictions" in text
    assert "steps: no step has come twice yet" in text
    assert block[0].item() == 2


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="torch_lms"):
        torch_lms.enable(limit="48MiB", device="cpu", log="info")
        torch_lms.disable()
    assert "managing cpu: limit 50331648 bytes" in caplog.text
    assert "no longer managing cpu" in caplog.text


def test_unsupported_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "_ops", None)
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(RuntimeError, match=r"PyTorch 2\.10\.1\+cpu is not supported.*2\.11"):
        torch_lms.enable(device="cpu")
    assert not _access.is_installed()


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "_ops", None)
    monkeypatch.setenv("LMS_LIBRARY", "/no/such/liblms_torch.so")
    with pytest.raises(RuntimeError, match="LMS_LIBRARY names /no/such"):
        torch_lms.enable(device="cpu")
