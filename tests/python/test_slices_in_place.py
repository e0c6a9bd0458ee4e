"""Operators that neither fit nor can be cut work on tensors where they lie below: the same bits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import forked
import pytest
import torch
from on_model import run_on_model
from test_slices import ALL, DEVICES, MIB, bits, numbers, sliced
from torch import Tensor
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.filterwarnings("ignore")
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Kernels of a GPU that add up in the same order each time: cuDNN's convolutions may not."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # which takes more room
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(False)


def scale(device: str) -> int:
    """How many times as large tensors are on a GPU, beside what libraries take there."""
    return 512 if device == "cuda" else 1


def convolved(device: str) -> list[Tensor]:
    """A convolution, a strided one, and one that goes back up, forwards and backwards."""
    x = numbers(2, 8, 61, 37 * scale(device), device=device).requires_grad_()
    down = numbers(12, 8, 3, 3, device=device, seed=1).requires_grad_()
    up = numbers(12, 8, 2, 2, device=device, seed=2).requires_grad_()
    y = functional.conv2d(x, down, padding=1)
    z = functional.conv2d(y, numbers(12, 12, 2, 2, device=device, seed=5), stride=2)
    z = functional.conv_transpose2d(z, up, stride=2)
    (z * z).sum().backward()
    return [y, z, x.grad, down.grad, up.grad]


def multiplied(device: str) -> list[Tensor]:
    n = 301 * scale(device)
    a = numbers(n, 171, device=device).requires_grad_()
    b = numbers(171, 203, device=device, seed=1).requires_grad_()
    c = numbers(3, n // 3, 203, device=device, seed=2)
    y = functional.linear(a, b.t(), numbers(203, device=device, seed=3))
    z = torch.bmm(c, numbers(3, 203, 5, device=device, seed=4))
    y.backward(numbers(n, 203, device=device, seed=5))
    return [y, z, a.grad, b.grad]


def normalised(device: str) -> list[Tensor]:
    """Batch norm, with its statistics, and group and layer norm backwards."""
    x = numbers(3, 16, 41, 29 * scale(device), device=device).requires_grad_()
    norm = torch.nn.BatchNorm2d(16).to(device)
    y = norm(x)
    y = functional.group_norm(y, 4, norm.weight, norm.bias)
    y = functional.layer_norm(y, (29 * scale(device),))
    y.backward(numbers(*y.shape, device=device, seed=3))
    return [y, x.grad, norm.running_mean, norm.running_var, norm.num_batches_tracked]


def attended(device: str) -> list[Tensor]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (
        numbers(
            2 * scale(device), 4, 100, 64, device=device, seed=seed, dtype=dtype
        ).requires_grad_()
        for seed in range(3)
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y.backward(numbers(*y.shape, device=device, seed=4, dtype=dtype))
    return [y, q.grad, k.grad, v.grad] if device == "cpu" else [y, k.grad, v.grad]


def reduced(device: str) -> list[Tensor]:
    x = numbers(401, 253 * scale(device), device=device)
    return [
        x.sum(), x.sum(0), x.mean(1), x.amax(0), *x.max(1), x.argmin(0), x.std(1), x.logsumexp(0),
        x.norm(dim=0), x.flip(0), x.roll(3, 1), x.tril(), x.t().contiguous(),
        x[torch.arange(401, device=device) * 3 % 401],
        x.index_select(1, torch.arange(9, device=device)),
        functional.glu(x[:, :252 * scale(device)]), functional.mse_loss(x, x.flip(1)),
    ]  # fmt: skip


def dropped(device: str) -> list[Tensor]:
    """Random numbers, and what is drawn after them."""
    torch.manual_seed(7)
    x = numbers(400, 300 * scale(device), device=device).requires_grad_()
    y, _ = torch.native_dropout(x, 0.3, True)
    y.backward(numbers(*y.shape, device=device, seed=3))
    return [y, x.grad, torch.rand(5, device=device)]


def looked_up(device: str) -> list[Tensor]:
    """Kernels that may read what lies below, and write nothing there."""
    image = numbers(2, 1, 101, 253 * scale(device), device=device)
    grid = numbers(2, 61, 207 * scale(device), 2, device=device, seed=1)
    y = functional.grid_sample(image, grid, align_corners=False)
    borders = torch.linspace(-2, 2, image.numel(), device=device)
    return [y, torch.searchsorted(borders, image.flatten(), out_int32=True)]


Program = Callable[[str], list[Tensor]]
PROGRAMS: dict[str, tuple[Program, int]] = {
    # With the limit in KiB (on the CPU), which some operator of it goes beyond.
    "convolved": (convolved, 200),
    "multiplied": (multiplied, 260),
    "normalised": (normalised, 240),
    "attended": (attended, 420),
    "reduced": (reduced, 420),
    "dropped": (dropped, 490),
    "looked_up": (looked_up, 410),
}
EVERYTHING = {name: program for name, (program, _) in PROGRAMS.items()} | ALL


def small(limit: int, **settings: object) -> AbstractContextManager[None]:
    return sliced("cpu", limit, **{"min_block": 4096} | settings)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_under_less_than_an_operator_needs(name: str, device: str) -> None:
    program, limit = PROGRAMS[name]
    expected = bits(program(device))
    settings: dict[str, object] = {} if device == "cuda" else {"min_block": 4096}
    settings["slices"] = "all"
    # On a GPU PyTorch's allocator keeps some of the limit, and libraries have workspaces.
    room = (limit << 10) * scale(device) + (96 * MIB if device == "cuda" else 0)
    with sliced(device, room, **settings):
        before = torch_lms.memory_stats(device)
        found = [program(device) for _ in range(2)]
        stats = torch_lms.memory_stats(device)
        assert stats["device.bytes.peak"] <= stats["limit"]
    assert stats["slices.in_place"] > before["slices.in_place"]
    assert stats["slices.in_place_bytes"] > before["slices.in_place_bytes"]
    assert bits(found[0]) == expected
    assert bits(found[1]) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_alone_are_not_enough(name: str) -> None:
    program, limit = PROGRAMS[name]
    with (
        small(limit << 10, slices="parts"),
        pytest.raises(torch.OutOfMemoryError, match="smallest limit"),
    ):
        program("cpu")


def no_room_below() -> None:
    with (
        small(200 << 10, slices="all", host_limit="400KiB"),
        pytest.raises(torch.OutOfMemoryError, match="no room below: file store .* is full"),
    ):
        convolved("cpu")
    with (
        small(200 << 10, slices="all", host_limit="16KiB"),
        pytest.raises(torch.OutOfMemoryError, match="would have to leave cannot: file") as caught,
    ):
        convolved("cpu")
    assert str(caught.value).count("is full") == 1


def test_an_error_says_that_there_was_no_room_below() -> None:
    # In a process that has nothing else that might have to leave.
    program = "from test_slices_in_place import no_room_below; no_room_below()"
    done = subprocess.run(
        [*forked.command(), "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("stress", [False, True, "drop"])
def test_everything_in_place(name: str, device: str, stress: bool | str) -> None:
    program = EVERYTHING[name]
    expected = bits(program(device))
    limit = (2048 if device == "cuda" else 512) * MIB
    block = 1 << 20 if device == "cuda" else 1
    with sliced(device, limit, slices="in_place", min_block=block, stress=stress, recompute=True):
        before = torch_lms.memory_stats(device)["slices.in_place"]
        found = program(device)
        assert torch_lms.memory_stats(device)["slices.in_place"] > before
    assert bits(found) == expected


def test_results_are_born_below() -> None:
    """They suffer least: operands that fit stay on the device."""
    a, b = numbers(512, 64, device="cpu"), numbers(64, 512, device="cpu", seed=1)
    expected = bits([a @ b])
    with small(400 << 10):
        a, b = a.clone(), b.clone()
        before = torch_lms.memory_stats("cpu")
        y = a @ b
        assert torch.ops.lms.state(y) == "absent"
        stats = torch_lms.memory_stats("cpu")
        assert stats["slices.in_place"] == before["slices.in_place"] + 1
        bytes_before = before["slices.in_place_bytes"]
        assert stats["slices.in_place_bytes"] == bytes_before + 512 * 512 * 4
        # It is known from now on.
        retries = stats["op_retries"]
        z = a @ b
        assert torch.ops.lms.state(a) == torch.ops.lms.state(b) == "resident"
        assert torch_lms.memory_stats("cpu")["op_retries"] == retries
    assert bits([y]) == bits([z]) == expected


def test_what_is_written_in_place_is_its_only_copy() -> None:
    expected = [numbers(300, 400, device="cpu") for _ in range(2)]
    aten.lerp_.Tensor(expected[0], expected[0].t().contiguous().view(300, 400), expected[1].tanh())
    with small(64 * MIB, slices="in_place"):
        x, weight = numbers(300, 400, device="cpu"), numbers(300, 400, device="cpu").tanh()
        end = x.t().contiguous().view(300, 400)
        aten.lerp_.Tensor(x, end, weight)
        assert torch.ops.lms.state(x) == "absent"
        assert torch.equal(x, expected[0])
    assert torch.equal(x, expected[0])


def test_an_error_of_the_operator_is_its_own_and_nothing_stays_lent() -> None:
    with small(64 * MIB, slices="in_place"):
        a, b = numbers(300, 40, device="cpu"), numbers(50, 300, device="cpu")
        for _ in range(3):
            with pytest.raises(RuntimeError, match="cannot be multiplied"):
                a @ b
        assert (a @ a.t()).shape == (300, 300)
        with pytest.raises(RuntimeError):
            functional.conv2d(a.view(1, 1, 300, 40), b.view(1, 2, 75, 100))
        array = a.numpy()
        assert torch.ops.lms.state(a) == "kept"
        assert array.shape == (300, 40)


def test_threads_at_the_same_tensors() -> None:
    a, b = numbers(300, 64, device="cpu"), numbers(64, 300, device="cpu", seed=1)
    expected = bits([a @ b, b @ a])
    found: dict[int, list[Tensor]] = {}
    with small(300 << 10):
        c, d = a.clone(), b.clone()

        def work(number: int) -> None:
            for _ in range(30):
                found[number] = [c @ d, d @ c]

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "it hangs"
    assert [bits(found[n]) for n in range(3)] == [expected] * 3


def test_a_training_loop_is_planned_nevertheless() -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 3001)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(24):
            x = numbers(307, 64, device="cpu", seed=step)
            loss = functional.cross_entropy(model(x), torch.arange(307) * 9 % 3001)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach(), *model.parameters()]

    expected = bits(train())
    with small(13 << 19, plan="now"):
        before = torch_lms.memory_stats("cpu")["slices.in_place"]
        found = train()
        stats = torch_lms.memory_stats("cpu")
    assert stats["slices.in_place"] > before
    assert stats["plan.steps"] > 0
    assert bits(found) == expected


def test_a_full_tier_below_is_still_an_error() -> None:
    gc.collect()  # blocks of others in cycles take room, too
    a, b = numbers(512, 64, device="cpu"), numbers(64, 512, device="cpu", seed=1)
    with small(400 << 10, host_limit=500 << 10):
        c, d = a.clone(), b.clone()
        with pytest.raises(torch.OutOfMemoryError, match="Nothing was lost"):
            c @ d
        assert torch.equal(c, a)
        assert torch.equal(d, b)


def test_on_cuda_as_far_as_the_host_sees() -> None:
    """Stock PyTorch for CUDA on a model of it in which kernels do nothing."""
    run_on_model("in_place_on_model.py")


def test_temporaries_may_be_what_finds_no_room() -> None:
    """What fits is then used where it lies below, for the kernel's own memory to fit as well."""
    run_on_model("temporaries_on_model.py")


def test_a_workspace_beyond_the_limit_lies_below() -> None:
    """The first algorithm of a convolution keeps the bits; another one would not."""
    run_on_model("workspace_on_model.py")
