"""Results that wait to be made by rows, of tensors whose updates wait, and the other way round."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import pytest
import torch
from stress import harness
from stress.children import run_script

import torch_lms

Operator = tuple[str, float, float]
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """Who waits for itself is in C++, and ends by no exception."""
    signal.alarm(300)
    yield
    signal.alarm(0)


def _program(seed: int) -> list[Operator]:
    """Of operators by rows, of updates, and of products, which are neither."""
    dice = random.Random(seed)
    makes = ["mul", "add", "tanh", "neg", "scaled", "product"]
    kinds = [*makes, "add_", "add_", "mul_", "tanh_", "copy_", "dies", "looked at"]
    return [(dice.choice(kinds), dice.random(), dice.random()) for _ in range(14)]


def _run(program: list[Operator], device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(64, 64, generator=generator).to(device) for _ in range(3)]
    seen = []
    for kind, one, other in program:
        x, y = tensors[int(one * len(tensors))], tensors[int(other * len(tensors))]
        match kind:
            case "mul":
                tensors.append(x * y)
            case "add":
                tensors.append(x + y)
            case "tanh":
                tensors.append(torch.tanh(x))
            case "neg":
                tensors.append(-x)
            case "scaled":
                tensors.append(x * 0.5)
            case "product":
                tensors.append(torch.tanh(x @ y))
            case "add_":
                x.add_(y)
            case "mul_":
                x.mul_(y * 0.1)
            case "tanh_":
                x.tanh_()
            case "copy_":
                x.copy_(y)
            case "looked at":
                seen.append(y.sum(0))
            case "dies" if len(tensors) > 3:
                tensors.pop(int(one * len(tensors)))
    return [each.nan_to_num() for each in seen + tensors]


@pytest.mark.parametrize("mode", ["all", "random"])
@pytest.mark.parametrize("stress", [False, True, "drop"])
@DEVICES
def test_random_programs(device: str, mode: str, stress: bool | str) -> None:
    rows = updates = 0
    for seed in range(30):
        program = _program(seed)
        expected = _run(program, device)
        with harness.managed(
            device, stress=stress, limit="1GiB", plan="off", slices="chains", deferred_updates=mode
        ):
            before = torch_lms.memory_stats(device)
            found = _run(program, device)
            same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
            after = torch_lms.memory_stats(device)
        assert all(same), (seed, program)
        rows += after["deferred.in_rows"] - before["deferred.in_rows"]
        updates += after["deferred.parts"] - before["deferred.parts"]
    assert rows > 0 and updates > 0


def test_strides_are_those_of_the_kernel() -> None:
    """Of a dimension of one position, too."""

    def run() -> list[tuple[int, ...]]:
        x = (torch.ones(2, 4, 16, 16) * 2).transpose_(0, -1)[..., ::2]
        y = torch.empty_like(x).fill_(3)
        z = (torch.ones(1, 4, 16, 16) * 2).transpose_(0, 1)
        rows = (torch.log_softmax(z, -1), torch.softmax(z, 1), torch.log_softmax(z, 0))
        made = (x * y, torch.exp(x), x * 2, y / 0.6, (x * y) + 1, *rows)
        return [each.stride() for each in made]

    expected = run()
    assert expected[0][-1] == 2048, "the kernel and the meta kernel agree: this shows nothing"
    with harness.managed("cpu", limit="1MiB", plan="off", slices="chains", deferred_updates="true"):
        assert run() == expected
        assert torch_lms.memory_stats("cpu")["deferred.in_rows"] > 0


# Under the settings that GPUs have, and where a list is larger than the limit.
LISTS = """
import sys, torch, torch_lms, faulthandler

faulthandler.dump_traceback_later(30, exit=True)

what, mode, device = sys.argv[1:]
rows, limit = (16, 5 << 20) if device == "cpu" else (512, 120 << 20)

def make():
    torch.manual_seed(0)
    return [[torch.randn(rows, 20000).bfloat16().to(device) for _ in range(8)] for _ in "ab"]

@torch.no_grad()
def run(a, b):
    found = []
    if what == "what rows are of is changed":
        c = b[7].float()
        torch._foreach_mul_(b, 2.0)
        found = [c.sum(), c]
    elif what == "changed twice":
        c = b[7].float()
        torch._foreach_mul_(b, a)
        torch._foreach_add_(a, b)
        d = b[7].float()
        found = [(c * d).sum(), c, d]
    elif what == "rows are changed":
        t = [x.float() for x in b]
        torch._foreach_add_(t, 1.0)
        d = t[7] * 2
        torch._foreach_mul_(t, 0.5)
        found = [d.sum(), d, *t]
    elif what == "rows of rows":
        c = torch.log_softmax(b[3], -1)
        d = c * 2
        torch._foreach_mul_(b, 2.0)
        torch._foreach_mul_([c, d, *a], 2.0)
        e = c + d
        found = [e.sum(), e, c, d]
    elif what == "an update follows":
        weight = torch.nn.Parameter(b[7].clone())
        optimizer = torch.optim.AdamW([weight], fused=True)
        weight.grad = a[7].clone()
        c = weight.float()
        optimizer.step()
        found = [weight.sum(), c]
    return [each.clone() for each in found]

expected = run(*make())
if device == "cuda":  # what PyTorch's allocator cannot give back, and its granularity
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    limit += torch.cuda.memory_reserved() + (24 << 20)
torch_lms.enable(device=device, limit=limit, min_block=4096, plan="off", plan_cache="off",
                 deferred_updates=mode)
found = run(*make())
assert torch_lms.memory_stats(device)["deferred.in_rows"] > 0, "nothing waited by rows"
print([torch.equal(a, b) for a, b in zip(found, expected, strict=True)])
"""


@pytest.mark.parametrize("mode", ["true", "updates"])
@pytest.mark.parametrize(
    "what",
    [
        "what rows are of is changed",
        "changed twice",
        "rows are changed",
        "rows of rows",
        "an update follows",
    ],
)
@DEVICES
def test_lists(device: str, what: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.lms()
    monkeypatch.setenv("TEST_WHOLE_LISTS", "1")
    done = run_script(LISTS, what, mode, device)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "False" not in done.stdout, done.stdout
