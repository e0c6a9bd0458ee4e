"""The benchmark harness: what makes a device keep to a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import CPU, FACTS, GIB, request, setting  # noqa: E402

from bench import ballast, planned, worker  # noqa: E402
from bench.ballast import Ballast  # noqa: E402

pytestmark = pytest.mark.pinned


class FakeRuntime:
    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.held = 0
        self.cleared = 0

    def cudaMalloc(self, address, size) -> int:  # noqa: N802
        if self.status == 0:
            self.held += size.value
        return self.status

    def cudaFree(self, address) -> int:  # noqa: N802
        self.held = 0
        return 0

    def cudaGetLastError(self) -> int:  # noqa: N802
        self.cleared += 1
        return self.status


@pytest.fixture
def fake_device(monkeypatch) -> SimpleNamespace:
    """A device of 80 GiB of which half a GiB is in use."""
    device = SimpleNamespace(runtime=FakeRuntime(), used=GIB // 2)

    def mem_get_info(_):
        return 80 * GIB - device.used - device.runtime.held, 80 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    return device


def test_the_ballast_leaves_the_limit_and_the_slack(fake_device):
    held = Ballast(CPU, 5 * GIB, GIB, fake_device.runtime)
    assert fake_device.runtime.held == held.bytes == 80 * GIB - GIB // 2 - 6 * GIB
    fake_device.used += 4 * GIB
    held.sample()
    fake_device.used -= 3 * GIB
    held.sample()
    assert held.fields() == {
        "ballast_bytes": 80 * GIB - GIB // 2 - 6 * GIB,
        "ballast_slack_bytes": GIB,
        "device_used_before": GIB // 2,
        "device_used_peak": GIB // 2 + 4 * GIB,
    }
    held.release()
    held.release()
    assert fake_device.runtime.held == 0


def test_no_ballast_where_no_more_is_free_and_an_error_where_none_can_be_had(fake_device):
    with Ballast(CPU, 80 * GIB, GIB, fake_device.runtime) as held:
        assert (held.bytes, fake_device.runtime.held) == (0, 0)
    fake_device.runtime.status = 2
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        Ballast(CPU, 5 * GIB, GIB, fake_device.runtime)
    assert fake_device.runtime.cleared == 1


def test_runs_under_lms_with_a_limit_take_the_ballast_and_give_it_back(
    fake_device, fake_lms, monkeypatch
):
    monkeypatch.setattr(ballast, "_runtime", lambda: fake_device.runtime)
    monkeypatch.setattr(worker, "_takes_ballast", lambda *_: True)

    def use_more(step, count, device, after_each=None):
        assert fake_device.runtime.held > 0
        fake_device.used = 3 * GIB
        return real_run_steps(step, count, device, after_each)

    real_run_steps = planned.run_steps
    monkeypatch.setattr(planned, "run_steps", use_more)
    asked = {"method": "lms-swap", "limit_bytes": 4 * GIB, "steps": 1}
    result = worker._one(request([], ballast_slack=GIB), asked, FACTS, None)
    assert result["error"] is None
    assert result["ballast_bytes"] == 80 * GIB - GIB // 2 - 5 * GIB
    assert result["device_used_peak"] == 3 * GIB
    assert fake_device.runtime.held == 0


def test_only_limited_runs_on_a_gpu_take_a_ballast():
    gpu = setting(device=torch.device("cuda:0"))
    asked = request([], ballast_slack=GIB)
    assert worker._takes_ballast(asked, gpu, "lms-swap")
    assert worker._takes_ballast(asked, gpu, "lms-reactive")
    assert not worker._takes_ballast(asked, gpu, "plain")
    assert not worker._takes_ballast(asked, setting(), "lms-swap")
    assert not worker._takes_ballast(request([]), gpu, "lms-swap")
