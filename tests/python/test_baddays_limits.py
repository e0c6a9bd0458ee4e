"""Bad days: limits and budgets too small. Clear errors, nothing lost, and training goes on."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import pytest
import torch
from stress import harness
from stress.networks import mlp
from stress.probe import DEVICES, block, reference, same, state
from stress.registry import Result, data, seed, summary

pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore"),
]
OUT_OF_MEMORY = (torch.OutOfMemoryError,)


@pytest.fixture(autouse=True)
def _not_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are those of operators that nothing helps."""
    monkeypatch.setenv("LMS_SLICES", "parts")


# Limits of a few KiB, which PyTorch's CUDA allocator cannot keep to: it takes memory in segments of
# 2 and of 20 MiB. test_gpu_limits.py has these days in sizes that suit a GPU.
exact = pytest.mark.cpu_only


class Training:
    """A training run that can be stopped and gone on with at any step."""

    def __init__(self, device: str) -> None:
        seed()
        self.device = device
        self.model = mlp().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        """One step; where it fails before the optimizer it can be repeated."""
        x = data(64, 64, device=self.device, value=len(self.losses))
        self.optimizer.zero_grad()
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def result(self) -> Result:
        """All of it."""
        return summary(self.model, self.optimizer, losses=self.losses)


def _plain(device: str, steps: int) -> dict[str, bytes]:
    run = Training(device)
    for _ in range(steps):
        run.step()
    return harness.bits_of(run.result())


@exact
def test_what_is_kept_is_named(device: str) -> None:
    """Pointers that are out may be all that is in the way, and nobody would guess it."""
    with harness.managed(device, limit="1MiB", stress=False):
        held = torch.ones(160, 1024, device=device) + 0
        with pytest.raises(OUT_OF_MEMORY) as caught:
            torch.ones(300, 1024, device=device) + 0
        assert "stay until they die" not in str(caught.value)
        held.numpy()
        with pytest.raises(OUT_OF_MEMORY) as caught:
            torch.ones(160, 1024, device=device) + 0
        assert "640 KiB of the limit belong to tensors that stay" in str(caught.value)


@exact
def test_limit_below_the_largest_operator(device: str) -> None:
    """The error names operator, bytes and the smallest workable limit; a larger limit goes on."""
    expected = _plain(device, 4)
    with harness.managed(device, limit="64MiB") as package:
        run = Training(device)
        run.step()
        run.step()
        a, b = block(256, 128, device=device), block(128, 256, device=device, value=3)
        package.enable(limit="64KiB", min_block="4KiB", device=device)
        with pytest.raises(OUT_OF_MEMORY) as caught:
            torch.mm(a, b)
        text = str(caught.value)
        smallest = harness.smallest_workable_limit(caught.value)
        assert smallest > 64 << 10, text
        assert re.search(r"[0-9.]+ ?(KiB|MiB|B|bytes)", text), f"no bytes named: {text}"
        assert "enable" in text or "limit" in text
        package.enable(limit="64MiB", min_block="4KiB", device=device)
        run.step()
        run.step()
        harness.check_same(expected, harness.bits_of(run.result()), "after the larger limit")
        product = torch.mm(a, b)
    assert same(product, torch.mm(a, b)), "the same product, without LMS"
    assert same(a, reference(256, 128)) and same(b, reference(128, 256, value=3))


@exact
def test_the_error_names_the_operator_that_failed(device: str) -> None:
    """One operator needs three large blocks at once; its name and its bytes are in the text."""
    mib = 1 << 20
    with harness.managed(device, limit=8 * mib) as package:
        a, b = block(1024, 1024, device=device), block(1024, 1024, device=device, value=3)
        with pytest.raises(OUT_OF_MEMORY) as caught:
            torch.mm(a, b)  # 12 MiB
        text = str(caught.value)
        assert re.search(r"\bmm\b", text), f"the operator is not named: {text}"
        smallest = harness.smallest_workable_limit(caught.value)
        assert 12 * mib <= smallest < 16 * mib, text
        facts = {"operator": "aten::mm", "least_limit": str(smallest), "full": "device"}
        said = torch.ops.lms.need_of(f"before | then: {text}, and after")
        assert {key: said[key] for key in facts} == facts
        assert int(said["bytes"]) == 12 * mib
        assert not torch.ops.lms.need_of("CUDA out of memory")
        assert same(a, reference(1024, 1024))
        assert same(b, reference(1024, 1024, value=3))
        with pytest.raises(OUT_OF_MEMORY):
            package.enable(limit=smallest - mib, min_block="4KiB", device=device)
            torch.mm(a, b)
        package.enable(limit=smallest, min_block="4KiB", device=device)
        y = torch.mm(a, b)
        package.disable()
        x, z = reference(1024, 1024).to(device), reference(1024, 1024, value=3).to(device)
        assert same(y, torch.mm(x, z))


@exact
def test_failing_step_can_be_repeated(device: str) -> None:
    """A step that ran out of memory halfway is done again under a larger limit: same bits."""
    expected = _plain(device, 5)
    with harness.managed(device, limit="64MiB") as package:
        run = Training(device)
        run.step()
        run.step()
        # Too little for a matrix product, so that the forward pass itself is cut off.
        package.enable(limit="40KiB", min_block="4KiB", device=device)
        with pytest.raises(OUT_OF_MEMORY):
            run.step()
        package.enable(limit="64MiB", min_block="4KiB", device=device)
        while len(run.losses) < 5:
            run.step()
        harness.check_same(expected, harness.bits_of(run.result()), "after the repeated step")


@exact
def test_lower_budget_exhausted(device: str) -> None:
    """Host memory or disk full: an error that says which, and every byte still there."""
    mib = 1 << 20
    settings = {"limit": 8 * mib, "host_limit": 8 * mib}
    with harness.managed(device, **settings) as package:
        kept = []
        with pytest.raises(OUT_OF_MEMORY) as caught:
            for index in range(32):
                kept.append(block(512, 512, device=device, value=index))
        assert 6 <= len(kept) < 24, f"{len(kept)} blocks of 1 MiB fit into 8 + 8 MiB"
        text = str(caught.value).lower()
        assert "host" in text or "file" in text or "disk" in text, f"which budget? {caught.value}"
        for index, x in enumerate(kept):
            assert same(x.sum(), block_sum(index, device)), f"block {index}"
        package.enable(limit=8 * mib, host_limit=64 * mib, min_block="4KiB", device=device)
        while len(kept) < 32:
            kept.append(block(512, 512, device=device, value=len(kept)))
        assert package.memory_stats(device)["device.bytes.current"] <= 8 * mib
        for index, x in enumerate(kept):
            assert same(x, reference(512, 512, value=index)), f"block {index}"


def block_sum(index: int, device: str) -> torch.Tensor:
    """The sum of an unmanaged tensor with the bytes of block ``index``."""
    return reference(512, 512, value=index).to(device).sum()


@exact
@pytest.mark.cpu_only
def test_directory_that_cannot_be_written(device: str, tmp_path: object) -> None:
    """A file tier that has no place is refused when managing begins."""
    package = harness.lms()
    with pytest.raises((RuntimeError, ValueError, OSError)) as caught:
        package.enable(device="cpu", directory=f"{tmp_path}/no/such/place")
    try:
        assert "place" in str(caught.value), "the error names the directory"
        assert not package.is_enabled()
        assert same(reference(64, 64) * 1, reference(64, 64))
    finally:
        package.disable()


def test_disable_with_blocks_out(device: str) -> None:
    """Everything returns; reads need no LMS any more; what is below is given back."""
    package = harness.lms()
    before = torch.Tensor.data_ptr, torch.Tensor.numpy
    side, limit = (256, "4MiB") if device == "cpu" else (512, harness.held(device))
    package.enable(device=device, min_block="4KiB", limit=limit)
    try:
        kept = [block(side, side, device=device, value=i) for i in range(64)]
        views = [x[3:9].t() for x in kept]
        assert sum(state(x) == "absent" for x in kept) > 30
    finally:
        package.disable()
    assert not package.is_enabled()
    assert (torch.Tensor.data_ptr, torch.Tensor.numpy) == before, "a wrapper was left behind"
    for index, (x, view) in enumerate(zip(kept, views, strict=True)):
        assert same(x, reference(side, side, value=index))
        assert same(view, reference(side, side, value=index)[3:9].t())
        assert state(x) == "unmanaged"
    kept[0].mul_(2).resize_(side + 44, side)
    package.disable()  # again: no harm


@exact
def test_enable_again_after_disable(device: str) -> None:
    """Rounds of managing over the same tensors, and new ones."""
    x, plain = reference(256, 256).to(device), reference(256, 256).to(device)
    for _ in range(3):
        with harness.managed(device, stress=True) as package:
            x = x * 0.5 + x
            x.sub_(0.25)
            assert package.memory_stats(device)["evictions"] > 0
        plain = plain * 0.5 + plain
        plain.sub_(0.25)
        assert same(x, plain)


FAILING: dict[str, Callable[[torch.Tensor], object]] = {
    "mm": lambda x: torch.mm(x, x),
    "unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "sort": lambda x: torch.sort(x.view(-1)),
    "svd": lambda x: torch.linalg.svd(x),
    "cat": lambda x: torch.cat([x.t()] * 4),  # not in slices
    "list": lambda x: torch._foreach_mul([x] * 4, 2.0),
    "nonzero": lambda x: x.nonzero(),
    "convolution": lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
    "index": lambda x: x[x > -100],
    "softmax": lambda x: (x * 2).softmax(0) + x,
}


def test_more_is_there_than_both_limits_hold(device: str) -> None:
    """Then enable() takes what it can get, and it is the next operator that says so."""
    with harness.managed(device, limit="1GiB"):
        held = [block(128, 128, device=device, value=i) for i in range(8)]  # 64 KiB each
    with harness.managed(device, limit="128KiB", host_limit="64KiB") as package:
        assert package.is_enabled(device)
        with pytest.raises((*OUT_OF_MEMORY, RuntimeError)) as caught:
            torch.zeros(4096, 4096, device=device).add_(1)  # more than a segment has left
        del caught
        package.enable(limit="1GiB", min_block="4KiB", device=device)
        assert all(same(x, reference(128, 128, value=i)) for i, x in enumerate(held))
    assert not package.is_enabled(device)


@pytest.mark.parametrize("how", FAILING)
@exact
def test_out_of_memory_leaves_no_pins(device: str, how: str) -> None:
    """After failures in the middle of an operator everything may still leave, and work goes on."""
    with harness.managed(device, limit="1GiB") as package:
        x = block(256, 256, device=device)  # 256 KiB
        package.enable(limit="384KiB", min_block="4KiB", device=device)
        for _ in range(5):
            with pytest.raises(OUT_OF_MEMORY) as caught:
                FAILING[how](x)
            assert "aten::" in str(caught.value), f"the operator is not named: {caught.value}"
            del caught
            gc.collect()
            assert package.memory_stats(device)["pinned.bytes.current"] == 0
        package.reclaim_inactive(device)
        assert state(x) == "absent"
        package.enable(limit="1GiB", min_block="4KiB", device=device)
        assert same(x, reference(256, 256))
        got = harness.bits_of(FAILING[how](x))
    plain = reference(256, 256).to(device)
    harness.check_same(harness.bits_of(FAILING[how](plain)), got, f"{how}, with a larger limit")
