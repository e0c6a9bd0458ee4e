"""Operators that run later than they are called: the same bits, whoever looks, and whenever."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator

import deferral
import pytest
import torch
from deferral import MODES, managed_tensor, waiting
from stress import harness
from stress.programs import PROGRAMS, Program

import torch_lms

# Of other releases: test_deferred_optimizers.py.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.pinned]
device = deferral.on_device


@pytest.fixture
def deferring(device: str) -> Iterator[None]:
    with harness.managed(device, stress=True, deferred_updates="all"):
        yield


# Programs ---------------------------------------------------------------------------------------


def _cases(beginning: str = "") -> list[object]:
    """Each program on each of its devices."""
    of = {"cpu": [], "cuda": [pytest.mark.gpu]}
    slow = {True: [pytest.mark.slow], False: []}
    return [
        pytest.param(device, item, id=f"{device}-{item.name}", marks=of[device] + slow[item.slow])
        for item in PROGRAMS.values()
        for device in item.devices
        if item.name.startswith(beginning)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("device", "item"), _cases())
def test_programs(item: Program, mode: str, device: str) -> None:
    """Every program, with everything evicted after every operator."""
    expected = harness.plain_bits(item, device)
    before: dict[str, int] = {}
    stats = harness.run_managed(
        item, device, expected, before=before, stress=True, deferred_updates=mode
    )
    # LBFGS has no lists; the fused Adagrad says that it writes step counts, which are too small.
    none_waits = ["optimizer_lbfgs", "optimizer_adagrad_fused"]
    if device == "cuda":
        none_waits.append("optimizer_asgd_foreach")  # updates read what it has just made
    if item.name.startswith("optimizer_") and item.name not in none_waits:
        waited = stats["deferred.parts"] - before["deferred.parts"]
        assert waited > 0, "nothing waited, so the comparison shows nothing"


@pytest.mark.parametrize(("device", "item"), _cases("optimizer_"))
def test_optimizers_with_drops(item: Program, device: str) -> None:
    """What can be computed again is dropped: it is computed from what was there before a write."""
    expected = harness.plain_bits(item, device)
    harness.run_managed(item, device, expected, stress="drop", deferred_updates="all")


# Whoever looks ----------------------------------------------------------------------------------


def _saved(t: torch.Tensor) -> list[float]:
    buffer = io.BytesIO()
    torch.save(t, buffer)
    buffer.seek(0)
    return torch.load(buffer).flatten().tolist()


def _at_address(t: torch.Tensor) -> list[float]:
    return list((ctypes.c_float * t.numel()).from_address(t.data_ptr()))


def _in_thread(t: torch.Tensor) -> list[float]:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.extend((t + 0).flatten().tolist()))
    thread.start()
    thread.join()
    return found


def _in_child(t: torch.Tensor) -> list[float]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"y" if bool((t == t[0, 0]).all()) and t[0, 0] == 3 else b"n")
        os._exit(0)
    answer = os.read(read, 1)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    return [3.0 if answer == b"y" else 1.0]


def _through_set(t: torch.Tensor) -> list[float]:
    other = torch.empty(0)
    other.set_(t.untyped_storage(), 0, t.shape, t.stride())
    return other.flatten().tolist()


LOOKS: dict[str, Callable[[torch.Tensor], list[float]]] = {
    "operator": lambda t: (t + 0).flatten().tolist(),
    "view": lambda t: t.t()[1:].flatten().tolist(),
    "item": lambda t: [t[3, 5].item()],
    "tolist": lambda t: t.flatten().tolist(),
    "numpy": lambda t: t.numpy().flatten().tolist(),
    "dlpack": lambda t: torch.from_dlpack(t.__dlpack__()).flatten().tolist(),
    "save": _saved,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).flatten().tolist(),
    "deepcopy": lambda t: copy.deepcopy(t).flatten().tolist(),
    "address": _at_address,
    "storage": lambda t: [torch.UntypedStorage.tolist(t.untyped_storage())[2] / 64 + 2],
    "data": lambda t: t.data.flatten().tolist(),
    "detach": lambda t: t.detach().flatten().tolist(),
    "set": _through_set,
    "equal": lambda t: [3.0 if torch.equal(t, torch.full_like(t, 3)) else 1.0],
    "out": lambda t: torch.mul(t, 1, out=torch.empty(64, 64)).flatten().tolist(),
    "shared": lambda t: t.share_memory_().flatten().tolist(),
    "thread": _in_thread,
    "child": _in_child,
    "state_dict": lambda t: torch.nn.ParameterList([t]).state_dict()["0"].flatten().tolist(),
    "host": lambda t: t.cpu().flatten().tolist(),
}
OF_MEMORY_OF_THE_HOST = ("numpy", "address", "shared", "child")


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(look, marks=[pytest.mark.cpu_only] if look in OF_MEMORY_OF_THE_HOST else [])
        for look in LOOKS
    ],
)
def test_who_looks_sees_it(deferring: None, look: str) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient, alpha=2)
    assert waiting() == 1
    seen = LOOKS[look](weight)
    assert set(seen) == {3.0}


def test_a_view_from_before_sees_it(deferring: None) -> None:
    weight = managed_tensor()
    row = weight[7]
    weight.mul_(5)
    assert waiting() == 1
    assert row.sum().item() == 5 * 64


def test_what_is_read_may_change(deferring: None) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient)
    gradient.zero_()
    assert waiting() == 2, "neither has been looked at"
    assert weight.sum().item() == 2 * 64 * 64
    assert gradient.sum().item() == 0


def test_what_is_read_may_change_unheard(deferring: None, device: str) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient)
    if device == "cpu":
        gradient.numpy()[:] = 100
    else:
        torch.from_dlpack(gradient.__dlpack__())[:] = 100
    assert weight.sum().item() == 2 * 64 * 64


def test_what_is_read_may_die(deferring: None) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient)
    del gradient
    gc.collect()
    others = [managed_tensor(value=9.0) for _ in range(8)]
    assert waiting() >= 1
    assert weight.sum().item() == 2 * 64 * 64
    del others


def test_what_is_read_may_give_its_memory_back(deferring: None) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient)
    gradient.untyped_storage().resize_(0)
    assert weight.sum().item() == 2 * 64 * 64


def test_the_order_is_the_programs(deferring: None) -> None:
    """What must run before a part runs before it, though nobody looks at it."""
    a, b, c = managed_tensor(value=1), managed_tensor(value=2), managed_tensor(value=3)
    a.add_(b)  # 3, of the b before
    b.mul_(c)  # 6
    a.mul_(b)  # 18
    c.zero_()
    assert waiting() == 4
    assert c.sum().item() == 0  # b needs the c before, and a the b before
    assert b.sum().item() == 6 * 64 * 64
    assert a.sum().item() == 18 * 64 * 64
    assert waiting() == 0


def test_only_what_is_needed_runs(deferring: None) -> None:
    a, b = managed_tensor(), managed_tensor()
    a.mul_(2)
    b.mul_(3)
    assert a.sum().item() == 2 * 64 * 64
    assert waiting() == 1, "nobody has looked at b"
    assert b.sum().item() == 3 * 64 * 64


def test_other_data_for_a_parameter(deferring: None) -> None:
    """``p.data = x`` after the call: the update is of what was there at the call."""
    weight = torch.nn.Parameter(managed_tensor())
    before = weight.data
    with torch.no_grad():
        weight.mul_(4)
    assert waiting() == 1
    weight.data = managed_tensor(value=10)
    assert weight.sum().item() == 10 * 64 * 64
    assert before.sum().item() == 4 * 64 * 64


def test_a_part_that_nobody_can_see_is_forgotten(deferring: None) -> None:
    weight, gradient = managed_tensor(), managed_tensor()
    weight.add_(gradient)
    weight.add_(gradient)
    kept = managed_tensor()
    kept.add_(weight)  # its results are wanted
    assert waiting() == 3
    del weight
    assert waiting() == 3
    del kept
    assert waiting() == 0
    assert gradient.sum().item() == 64 * 64


def test_positions_that_overlap(deferring: None, device: str) -> None:
    """A GPU's kernel does all positions at once, so they do not wait: parts would have an order.
    On the CPU they have one anyway."""
    x, y = managed_tensor(), managed_tensor()
    torch._foreach_add_([x, x[0:1]], 0.5)
    torch._foreach_add_([x[:8], y], [y[:8], x])
    if device == "cuda":
        assert waiting() == 0
    else:
        assert x.sum().item() == 64 * (3 + 7 * 2.5 + 56 * 1.5)
        assert y.sum().item() == 64 * (4 + 7 * 3.5 + 56 * 2.5)


def test_positions_side_by_side_wait(deferring: None) -> None:
    x = managed_tensor()
    torch._foreach_add_([x[:8], x[8:]], 0.5)
    assert waiting() == 2
    assert x.sum().item() == 1.5 * 64 * 64


def test_a_long_row_ends(deferring: None) -> None:
    weight = managed_tensor(value=0)
    for _ in range(1000):
        weight.add_(1)
    assert waiting() <= 65
    assert weight.sum().item() == 1000 * 64 * 64


def test_errors_come_when_called(deferring: None) -> None:
    weight = managed_tensor()
    with pytest.raises(RuntimeError, match="size"):
        weight.add_(managed_tensor(3, 64))
    with pytest.raises(RuntimeError, match="single memory location|overlap"):
        weight.flatten()[1:].add_(weight.flatten()[:-1])
    with pytest.raises(RuntimeError):
        weight.mul_(2j)
    counts = managed_tensor().to(torch.int64)
    with pytest.raises(RuntimeError, match="cast"):
        counts.div_(2)
    with pytest.raises(RuntimeError, match="requires grad"):
        managed_tensor().requires_grad_().mul_(2)
    assert waiting() == 0
    assert weight.sum().item() == 64 * 64


def test_versions_count_at_the_call(deferring: None) -> None:
    weight = managed_tensor()
    before = weight._version
    weight.mul_(2)
    assert weight._version == before + 1
    x = managed_tensor().requires_grad_()
    y = x * weight
    weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_disable_runs_what_waits(device: str) -> None:
    with harness.managed(device, deferred_updates="all"):
        weight, gradient = managed_tensor(), managed_tensor()
        weight.add_(gradient)
        assert waiting() == 1
    assert weight.sum().item() == 2 * 64 * 64


def test_turning_it_off_runs_what_waits(deferring: None, device: str) -> None:
    weight = managed_tensor()
    weight.mul_(2)
    assert waiting() == 1
    torch_lms.enable(device=device, stress=True, min_block="4KiB", deferred_updates=False)
    assert waiting() == 0
    weight.mul_(2)
    assert waiting() == 0
    assert weight.sum().item() == 4 * 64 * 64


@pytest.mark.cpu_only  # elsewhere PyTorch's allocator takes memory in larger pieces
def test_no_room_loses_nothing(device: str) -> None:
    """A part that finds no room waits on, and runs where there is some."""
    mib = 1 << 20
    whole = {"plan": False, "deferred_updates": "all", "slices": "off"}
    with harness.managed(device, limit=64 * mib, **whole):
        weight, gradient = managed_tensor(mib), managed_tensor(mib)  # 4 MiB each
        weight.add_(gradient)
        assert waiting() == 1
        torch_lms.enable(device=device, limit=6 * mib, min_block="4KiB", **whole)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                weight[:5].sum()
            assert waiting() == 1
        torch_lms.enable(device=device, limit=64 * mib, min_block="4KiB", **whole)
        assert weight.sum().item() == 2 * mib
        assert waiting() == 0


@pytest.mark.cpu_only
def test_no_room_within_an_operator_loses_nothing(device: str) -> None:
    """Likewise if who looks is within another operator, which has not been given the tensor."""
    mib = 1 << 20
    whole = {"plan": False, "deferred_updates": "all", "slices": "off"}
    with harness.managed(device, limit=64 * mib, **whole):
        weight, gradient = managed_tensor(mib), managed_tensor(mib)  # 4 MiB each
        weights = [weight]

        @torch.library.custom_op("lms_tests::reads_weight", mutates_args=(), device_types=device)
        def reads_weight(x: torch.Tensor) -> torch.Tensor:
            return x + weights[0][:5].sum()

        weight.add_(gradient)
        assert waiting() == 1
        torch_lms.enable(device=device, limit=6 * mib, min_block="4KiB", **whole)
        with pytest.raises(RuntimeError, match="out of memory"):
            reads_weight(torch.ones(3))
        assert waiting() == 1
        torch_lms.enable(device=device, limit=64 * mib, min_block="4KiB", **whole)
        assert reads_weight(torch.ones(3)).tolist() == [11.0] * 3
        assert weight.sum().item() == 2 * mib
    weights.clear()  # the operator stays


def test_threads_look_at_once(deferring: None) -> None:
    """However many look at the same time: a part runs once, and all see it done."""
    for _ in range(20):
        weights = [managed_tensor(value=0) for _ in range(8)]
        one = managed_tensor()
        for weight in weights:
            weight.add_(one)
        begin = threading.Barrier(4)
        sums: list[float] = []

        def look(weights: list[torch.Tensor], begin: threading.Barrier, sums: list[float]) -> None:
            begin.wait()
            sums.extend((weight + 0).sum().item() for weight in weights)

        threads = [threading.Thread(target=look, args=(weights, begin, sums)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums == [64.0 * 64] * 32


def test_a_number_that_lies_in_what_is_written_is_refused_at_the_call(deferring: None) -> None:
    x = managed_tensor()
    with pytest.raises(RuntimeError, match="single memory location"):
        x.mul_(x[0, 0])
    assert waiting() == 0
