"""Bad days: threads that need the room that others hold, and errors that name what would do."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable

import pytest
import torch
from stress import harness
from stress.children import run_script
from stress.probe import same

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.pinned]

UNIT = 64 * 1024  # bytes
THREADS = 2


def _tensor(units: int, value: float) -> torch.Tensor:
    return torch.full((units * UNIT // 4,), value).add_(0)


def _side_by_side(work: Callable[[int], None], threads: int = THREADS) -> None:
    errors: list[BaseException] = []

    def guard(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    barrier = threading.Barrier(threads)
    _side_by_side.barrier = barrier  # type: ignore[attr-defined]
    running = [threading.Thread(target=guard, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "one allocation": lambda a, b: a * b,
    "several allocations": lambda a, b: torch.logaddexp(a, b).cumsum(0),
    "a workspace": lambda a, b: torch.sort(a[: a.numel() // 2])[0] + b[0],
    "matrices": lambda a, b: a.view(-1, 128) @ b.view(128, -1)[:, :64],
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_whose_operators_fit_alone(name: str, threads: int) -> None:
    """Each operator takes 60 of 100 units: none runs out of memory, whoever comes when."""
    operator = OPERATORS[name]
    wanted = [operator(_tensor(20, i + 1.0), _tensor(20, 2.0)).clone() for i in range(threads)]
    with harness.managed("cpu", limit=100 * UNIT):
        inputs = [(_tensor(20, i + 1.0), _tensor(20, 2.0)) for i in range(threads)]

        def work(index: int) -> None:
            barrier = _side_by_side.barrier  # type: ignore[attr-defined]
            for _ in range(15):
                barrier.wait(60)
                assert same(operator(*inputs[index]), wanted[index])

        _side_by_side(work, threads)


def _named(error: BaseException) -> int:
    found = re.search(r"limit (?:that could work here is|of) .*?\((\d+) bytes\)", str(error))
    assert found, str(error)
    return int(found.group(1))


def _until_it_runs(
    package: object, limit: int, operator: Callable[[], torch.Tensor]
) -> tuple[torch.Tensor, list[int]]:
    """Does what the errors say until the operator runs; the limits that it took."""
    limits = [limit]
    for _ in range(12):
        try:
            return operator(), limits
        except torch.OutOfMemoryError as error:
            named = _named(error)
            assert named > limits[-1], f"refused under {limits[-1]}: {error}"
            limits.append(named)
        package.enable(device="cpu", min_block="4KiB", limit=limits[-1], slices="off")  # type: ignore[attr-defined]
    raise AssertionError(f"{limits} were not enough")


@pytest.mark.parametrize("seed", range(12))
def test_the_limit_that_the_error_names_works(seed: int) -> None:
    """An operator that failed goes on under the limit that its error names, as things are."""
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 30) for _ in range(3)]
    kinds: list[Callable[..., torch.Tensor]] = [
        lambda a, b, c: a.clone(),
        lambda a, b, c: torch.cat([a, b, c]),
        lambda a, b, c: torch.cat([a, a, b, b.view(-1)]),
        lambda a, b, c: torch.empty(a.numel() * 3).fill_(2.0),
        lambda a, b, c: a.sort()[0],
        lambda a, b, c: a.view(-1, 128) @ c.view(128, -1),
        lambda a, b, c: torch.ops.aten.add(a, 1.0).add_(a),
    ]
    for kind in kinds:
        wanted = kind(*(_tensor(size, float(size)) for size in sizes))
        full = chance.random() < 0.3
        limit = chance.randrange(1, 40) * UNIT
        with harness.managed("cpu", limit=200 * UNIT) as package:
            tensors = [_tensor(size, float(size)) for size in sizes]
            others = [_tensor(chance.randrange(1, 8), 0.0) for _ in range(chance.randrange(5))]
            kept = _tensor(chance.randrange(1, 8), 1.0)
            if chance.random() < 0.5:
                kept.data_ptr()
            settings = {"host_limit": 4 * UNIT} if full else {}
            package.enable(device="cpu", min_block="4KiB", slices="off", limit=limit, **settings)
            got, limits = _until_it_runs(package, limit, lambda k=kind, t=tensors: k(*t))
            assert same(got, wanted), limits
            del others


def test_the_named_limit_is_the_smallest() -> None:
    with harness.managed("cpu", limit=UNIT * 40) as package:
        x = _tensor(20, 1.0)
        package.enable(device="cpu", min_block="4KiB", limit=39 * UNIT, slices="off")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            x * 2
        assert _named(caught.value) == 40 * UNIT


def test_a_full_file_is_what_the_error_is_about() -> None:
    """No device limit below the present one is named as if it would help."""
    with harness.managed("cpu", limit=8 * UNIT, host_limit=2 * UNIT):
        held = [_tensor(2, float(i)) for i in range(5)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            held.append(_tensor(2, 0.0))
        text = str(caught.value)
        assert "is full" in text and "smallest limit" not in text, text
        assert torch.ops.lms.need_of(text)["full"] == "below"
        assert _named(caught.value) == 10 * UNIT, text


def test_what_lies_in_a_full_file_can_be_read_and_written() -> None:
    """Nothing can leave to make room for it: it is used where it lies."""
    with harness.managed("cpu", limit=8 * UNIT, host_limit=12 * UNIT) as package:
        held = []
        with pytest.raises(torch.OutOfMemoryError, match="is full"):
            while True:
                held.append(_tensor(2, float(len(held))))
        assert len(held) >= 9
        for turn in range(3):
            for index, x in enumerate(held):
                assert x.min().item() == x.max().item() == index + turn
            for x in held:
                x.add_(1)
        package.enable(device="cpu", min_block="4KiB", limit=8 * UNIT, host_limit=40 * UNIT)
        assert all(bool((x == index + 3).all()) for index, x in enumerate(held))
    assert all(bool((x == index + 3).all()) for index, x in enumerate(held))


def test_what_lies_in_a_full_file_is_there_after_disable() -> None:
    """It is no block that is away, and a later file is another."""
    held = []
    with harness.managed("cpu", limit=8 * UNIT, host_limit=8 * UNIT):
        with pytest.raises(torch.OutOfMemoryError, match="is full"):
            while True:
                held.append(_tensor(2, float(len(held))))
        for x in held:
            x.add_(1)
    with harness.managed("cpu", limit=8 * UNIT, host_limit=40 * UNIT) as package:
        more = [_tensor(2, float(index)) for index in range(8)]
        assert package.memory_stats("cpu")["evictions"] > 0
        assert all(bool((x == index + 1).all()) for index, x in enumerate(held))
        del more
    assert all(bool((x == index + 1).all()) for index, x in enumerate(held))


DIVERGES = """
import torch, torch_lms
torch_lms.enable(device="cpu", limit="384KiB", min_block="4KiB", plan="now", plan_seconds=0.05{log})
x = [torch.full((128, 128), float(i)).add_(0) for i in range(8)]
def step():
    for y in x:
        y.mul_(1)
    for y in x[::-1]:
        y.add_(0)
    x[0].neg_()
for _ in range(20):
    step()
assert torch_lms.memory_stats("cpu")["plan.steps"] > 0
for y in x[::3]:
    y.add_(1)
step()
assert torch_lms.memory_stats("cpu")["plan.divergences"] > 0
torch_lms.disable()
"""


@pytest.mark.parametrize("log", ["", ', log="off"', ', log="info"', ', log="debug"'])
def test_nothing_is_said_where_the_log_is_off(log: str) -> None:
    harness.lms()
    done = run_script(DIVERGES.format(log=log))
    assert done.returncode == 0, done.stderr
    if "info" in log or "debug" in log:
        assert "this step is another than the one planned" in done.stderr
    else:
        assert done.stderr == ""


@torch.library.custom_op("lms_test::doubled", mutates_args=())
def doubled(x: torch.Tensor, slow: bool) -> torch.Tensor:
    """In two halves where there is no room for more."""
    try:
        return torch.cat([x * 2, torch.empty(0)]) if not slow else x.repeat(64)[: x.numel()] * 2
    except torch.OutOfMemoryError:
        return x.clone().mul_(2)


@pytest.mark.parametrize("slow", [False, True])
def test_operators_of_others_meet_pytorchs_type_of_error(slow: bool) -> None:
    """A function of Python that is an operator may go another way."""
    with harness.managed("cpu", limit=100 * UNIT, slices="off"):
        x = _tensor(30, 3.0)
        assert same(torch.ops.lms_test.doubled(x, slow), torch.full_like(x, 6.0))
        with pytest.raises(torch.OutOfMemoryError, match="doubled"):
            torch.ops.lms_test.doubled(_tensor(60, 1.0), slow)
