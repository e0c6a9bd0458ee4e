"""Stream order without a GPU: LMS on a model of CUDA that sees every race.

The model (``tests/model_cuda``) stands in for the CUDA runtime: copies, streams and events do what
CUDA promises and no more, and two operations that touch the same bytes are reported if neither is
ordered after the other, however they happened to run. It must be there when PyTorch is loaded:
``test_streams_model.py`` runs these tests, in a process of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stream_programs as programs
import torch
from stress.probe import send_away

import torch_lms

MODEL = ctypes.CDLL(None)


def races() -> list[str]:
    """What has raced since the last call."""
    text = ctypes.create_string_buffer(1 << 16)
    MODEL.model_cuda_races(text, len(text))
    return text.value.decode().splitlines()


def check(result: programs.Result) -> None:
    """No race, and the values that must be."""
    torch.cuda.synchronize()
    assert races() == []
    for tensor, value in result:
        assert bool((tensor.cpu() == value).all()), (tensor.cpu(), value)
    assert races() == []


def leave_alone(_: torch.Tensor) -> None:
    """What evicts in a plain run."""


def evict_if_it_may(tensor: torch.Tensor) -> None:
    """Evicts what may leave."""
    torch.ops.lms.evict(tensor)


def copy_ahead(tensor: torch.Tensor) -> None:
    """Begins a copy below, from which the tensor may leave later."""
    torch.ops.lms.clean(tensor)


def bring_ahead(tensor: torch.Tensor) -> None:
    """Begins to bring it back."""
    torch.ops.lms.fetch(tensor)


@contextlib.contextmanager
def managed(
    arena: bool, slices: str = "auto", host_limit: str = "64MiB", deferred: str = "off"
) -> Iterator[None]:
    """LMS with an arena or, under the least of limits, without."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    limit = "512MiB" if arena else "127MiB"
    # To verify it would wait for the copies, and hide races with them.
    with torch_lms.managed(
        device="cuda",
        limit=limit,
        min_block="64KiB",
        host_limit=host_limit,
        slices=slices,
        deferred_updates=deferred,
        verify=False,
    ):
        yield
    races()


def test_the_model_sees_a_race() -> None:
    """A write beside a read."""
    x = programs.large(1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.clone()
    x.fill_(2.0)
    assert len(races()) == 1
    torch.cuda.synchronize()
    del y


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_program(program: Callable[..., programs.Result], arena: bool) -> None:
    """Right in plain PyTorch, and so under LMS."""
    check(program(leave_alone))
    with managed(arena):
        check(program(send_away))


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("slices", ["always", "in_place"])
def test_program_in_slices(
    program: Callable[..., programs.Result], arena: bool, slices: str
) -> None:
    """Every fill and copy runs part by part, or as a whole, on what lies in host memory."""
    with managed(arena, slices=slices):
        check(program(evict_if_it_may))
        count = "slices.operators" if slices == "always" else "slices.in_place"
        assert torch_lms.memory_stats("cuda")[count] > 0


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("deferred", ["all", "random"])
def test_program_that_waits(
    program: Callable[..., programs.Result], arena: bool, deferred: str
) -> None:
    """What writes in place on the main stream runs when somebody wants what it writes."""
    with managed(arena, deferred=deferred):
        check(program(evict_if_it_may))


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("how", ["disable", "mode"])
def test_nothing_waits_any_more(arena: bool, how: str) -> None:
    """LMS is turned off after another stream has waited for what has not run."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with managed(arena, deferred="all"):
        x = programs.large(0)
        x.fill_(1)
        side.wait_stream(main)
        if how == "disable":
            torch_lms.disable("cuda")
        else:
            limit = torch_lms.get_limit("cuda")
            torch_lms.enable(device="cuda", limit=limit, deferred_updates=False)
        with torch.cuda.stream(side):
            y = x.clone()
        main.wait_stream(side)
        check([(y, 1)])


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("deferred", ["all", "random"])
def test_random_programs_that_wait(arena: bool, deferred: str) -> None:
    """Whoever wants it, on whatever stream, and whomever that has waited for before."""
    moves = [copy_ahead, bring_ahead]
    with managed(arena, deferred=deferred):
        for seed in range(int(os.environ.get("MODEL_CUDA_SEEDS", "48"))):
            try:
                check(programs.random_program(seed, evict_if_it_may, moves=moves))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
        assert torch_lms.memory_stats("cuda")["deferred.parts"] > 0


@pytest.mark.parametrize("slices", ["auto", "always", "in_place"])
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_random_programs(arena: bool, slices: str) -> None:
    """Random programs, first without LMS: there the program itself would be wrong."""
    for seed in range(int(os.environ.get("MODEL_CUDA_SEEDS", "12"))):
        check(programs.random_program(seed, leave_alone))
        with managed(arena, slices):
            try:
                check(programs.random_program(seed, evict_if_it_may))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("slices", ["auto", "always", "in_place"])
@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_random_programs_that_move_ahead(arena: bool, slices: str) -> None:
    """Copies out and back that are begun before anybody needs them, as plans have them."""
    moves = [copy_ahead, bring_ahead]
    for seed in range(int(os.environ.get("MODEL_CUDA_SEEDS", "12"))):
        with managed(arena, slices):
            try:
                check(programs.random_program(seed, evict_if_it_may, moves=moves))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("readers", [1, 2])
def test_read_in_place_while_it_comes_back(readers: int, arena: bool) -> None:
    """Its slot serves others only after all that read it where it lay."""
    with managed(arena, slices="in_place", host_limit=f"{1 + readers}MiB"):
        x = programs.large(1)
        evict_if_it_may(x)
        main = torch.cuda.current_stream()
        read = []
        for _ in range(readers):
            side = torch.cuda.Stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                torch.cuda._sleep(1000)
                read.append(x.clone())
            x.record_stream(side)
        limit = "512MiB" if arena else "127MiB"
        torch_lms.enable(device="cuda", limit=limit, slices="auto", verify=False)
        read.append(x.clone())
        del x
        main.synchronize()
        other = programs.large(9)
        send_away(other)
        check([*((one, 1) for one in read), (other, 9)])


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("what", ["read", "written", "fetched, written"])
def test_in_place_on_a_stream_that_has_not_waited(what: str, arena: bool) -> None:
    """Copies that nobody on it knows of: out of the block, and back from the slot."""
    with managed(arena):
        x = programs.large(1)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        assert torch.ops.lms.evict(x)
        if what == "fetched, written":
            assert torch.ops.lms.fetch(x)
            assert torch.ops.lms.evict(x)
        limit = "512MiB" if arena else "127MiB"
        how = {"min_block": "64KiB", "verify": False, "slices": "in_place"}
        torch_lms.enable(device="cuda", limit=limit, **how)
        with torch.cuda.stream(side):
            if what == "read":
                check([(x.clone(), 1), (x, 1)])
                return
            x.fill_(2.0)
        check([(x, 2)])


def unseen_read(x: torch.Tensor, into: torch.Tensor) -> None:
    """What an extension's kernel does: takes the address, and reads on the current stream."""
    address = torch.Tensor.data_ptr.__wrapped__  # type: ignore[attr-defined]
    stream = torch.cuda.current_stream().cuda_stream
    code = MODEL.cudaMemcpyAsync(
        *(ctypes.c_void_p(address(t)) for t in (into, x)),
        ctypes.c_size_t(x.numel() * x.element_size()),
        ctypes.c_int(4),
        ctypes.c_void_p(stream),
    )
    assert code == 0


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize(
    "how", ["away", "fetched", "fetched elsewhere", "fetched, used", "fetched, used, away"]
)
def test_unseen_read(how: str, arena: bool) -> None:
    """A read that no operator announces, on the current stream, wherever the bytes are."""
    with managed(arena):
        x, into = programs.large(1), programs.large(0)
        torch.ops.lms.access(into)
        send_away(x)
        side = torch.cuda.Stream()
        if how == "fetched elsewhere":
            with torch.cuda.stream(side):
                assert torch.ops.lms.fetch(x)
        elif how != "away":
            assert torch.ops.lms.fetch(x)
        if "used" in how:
            x.clone()
        if how.endswith("used, away"):
            send_away(x)
        torch.cuda._sleep(1000)
        unseen_read(x, into)
        check([(into, 1), (x, 1)])


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("on_side", [True, False], ids=["side", "main"])
def test_unseen_read_of_what_was_copied_ahead(on_side: bool, arena: bool) -> None:
    """It has left without a copy, as one was under way: whoever reads that waits for it."""
    with managed(arena):
        x, into = programs.large(1), programs.large(0)
        torch.ops.lms.access(into)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if on_side else None):
            torch.cuda._sleep(1000)
            assert torch.ops.lms.clean(x) == arena
            assert torch.ops.lms.evict(x)
            unseen_read(x, into)
            if on_side:
                torch.cuda.current_stream().synchronize()
        check([(into, 1), (x, 1)])


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("then", ["dies", "leaves", "written", "resized"])
def test_copied_ahead(then: str, arena: bool) -> None:
    """What is being copied out dies, leaves, or is written, before the copy has ended.

    Not in memory of PyTorch's allocator, which nobody hears of when it dies.
    """
    with managed(arena):
        x = programs.large(1)
        torch.cuda._sleep(1000)
        assert torch.ops.lms.clean(x) == arena
        expected: programs.Result = []
        if then == "dies":
            del x
        elif then == "leaves":
            assert torch.ops.lms.evict(x)
            expected = [(x.clone(), 1), (x, 1)]
        elif then == "written":
            x.fill_(2.0)
            torch.ops.lms.evict(x)
            expected = [(x, 2)]
        else:
            x.untyped_storage().resize_(0)
        others = [programs.large(9) for _ in range(3)]
        torch.cuda.current_stream().synchronize()
        check([*expected, *((other, 9) for other in others)])
    check(expected)


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
@pytest.mark.parametrize("then", ["dies", "leaves", "written", "read", "stays", "resized"])
def test_fetched(then: str, arena: bool) -> None:
    """What has been fetched ahead dies, leaves, or is used, before the copy has ended."""
    with managed(arena):
        x = programs.large(1)
        send_away(x)
        assert torch.ops.lms.fetch(x)
        expected: programs.Result = []
        if then == "dies":
            del x
        elif then == "leaves":
            send_away(x)
            expected = [(x, 1)]
        elif then == "written":
            x.fill_(2.0)
            torch.ops.lms.evict(x)
            expected = [(x, 2)]
        elif then == "read":
            expected = [(x.clone(), 1), (x, 1)]
            torch.ops.lms.evict(x)
        elif then == "resized":
            x.untyped_storage().resize_(0)
        else:
            expected = [(x, 1)]
        others = [programs.large(9) for _ in range(3)]
        torch.cuda.current_stream().synchronize()
        check([*expected, *((other, 9) for other in others)])
    check(expected)


@pytest.mark.parametrize("arena", [True, False], ids=["arena", "native"])
def test_memory_that_goes_and_returns(arena: bool) -> None:
    """A storage may get its old address again: what was known of its bytes is over."""
    with managed(arena):
        x = programs.large(1)
        send_away(x)
        x.clone()  # it is there again, and the copy is kept
        storage = x.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        x.clone()
        before = torch_lms.memory_stats("cuda")
        send_away(x)
        after = torch_lms.memory_stats("cuda")
        assert after["evictions"] == before["evictions"] + 1
        assert after["evictions.clean"] == before["evictions.clean"]


def test_memory_goes_back_while_a_graph_is_captured() -> None:
    """The arena keeps what is free: giving it back takes a wait for the device."""
    with managed(arena=True):
        x = programs.large(1)
        del x
        assert torch_lms.memory_stats("cuda")["arena.reserved.current"] > 0
        torch.cuda.synchronize()
        waits = MODEL.model_cuda_capture(1)
        try:
            torch.cuda.empty_cache()
        finally:
            assert MODEL.model_cuda_capture(-1) == waits
        torch.cuda.empty_cache()
        assert torch_lms.memory_stats("cuda")["arena.reserved.current"] == 0


def test_memory_that_a_pool_has_given_back() -> None:
    """What has been a private pool's is managed when it is nobody's in particular."""
    with managed(arena=False):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((1 << 23,), 1.0, device="cuda")
        address = x.data_ptr()
        assert torch.ops.lms.state(x) == "unmanaged"
        del x, pool
        torch.cuda.empty_cache()
        x = torch.full((1 << 23,), 1.0, device="cuda")
        x.clone()
        assert torch.ops.lms.state(x) == "resident"
        assert x.data_ptr() == address


def test_memory_of_a_pool_from_before() -> None:
    """A graph that was captured before has its addresses."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((1 << 23,), 1.0, device="cuda")
    with managed(arena=True):
        x.clone()
        assert torch.ops.lms.state(x) == "unmanaged"


def test_an_enable_that_fails_leaves_nothing() -> None:
    """Neither the allocator nor the state of being enabled."""
    torch.cuda.synchronize()
    library = Path(torch.__file__).parent / "lib/libc10_cuda.so"
    name = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
    allocator = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), name)
    before = allocator.value
    MODEL.model_cuda_refuse_questions(1)
    with pytest.raises(RuntimeError):
        torch_lms.enable(device="cuda", limit="256MiB")
    assert allocator.value == before
    assert not torch_lms.is_enabled("cuda")
    with managed(arena=True):
        assert allocator.value != before
    assert allocator.value == before


def test_planned_loop() -> None:
    """A loop under a plan that fetches ahead, cleans and drops."""
    weights = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]

    def step() -> None:
        saved = [w.clone() for w in weights]
        for w in reversed(weights):
            back = saved.pop()
            w.copy_(back)
            gradient = back.clone()
            gradient.copy_(w)

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch_lms.managed(
        device="cuda", limit=180 << 20, host_limit="600MiB", plan="now", verify=False
    ):
        for _ in range(14):
            step()
            torch_lms.step()
            assert races() == []
        assert torch_lms.memory_stats("cuda")["plan.steps"] >= 4
        check([(w, i) for i, w in enumerate(weights)])
    check([(w, i) for i, w in enumerate(weights)])


def test_another_size_is_planned_where_things_are() -> None:
    """Nothing leaves for it, as what can leave is in no plan's way."""
    weights = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]

    def step(part: int) -> None:
        saved = [w[:part].clone() for w in weights]
        for w in reversed(weights):
            w[:part].copy_(saved.pop())

    def run(part: int, steps: int) -> list[int]:
        there = []
        for _ in range(steps):
            step(part)
            torch_lms.step()  # which is when the next size is planned
            assert races() == []
            there.append(torch_lms.memory_stats("cuda")["arena.bytes.current"])
        return there

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch_lms.managed(
        device="cuda", limit=180 << 20, host_limit="600MiB", plan="now", verify=False
    ):
        before = run(1 << 19, 9)[-1]
        assert before > 0, "something is there between steps"
        other = run(1 << 20, 2)
        assert torch_lms.memory_stats("cuda")["plan.planned"] == 2
        assert min(other) >= before, other
    check([(w, i) for i, w in enumerate(weights)])
