"""Traps: threads, graphs that are walked again, and hooks that keep tensors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import forked
import pytest
import torch
from stress import harness
from stress.networks import mlp
from stress.probe import DEVICES, block, reference, same, send_away
from stress.registry import seed

pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore"),
]


def _together(*works: object) -> None:
    errors: list[BaseException] = []

    def guard(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_one_block_used_and_evicted_by_several_threads(device: str) -> None:
    """Readers always see whole, right bytes, while another thread sends the block away."""
    with harness.managed(device) as package:
        x = block(256, 256, device=device)
        expected = reference(256, 256) * 2
        stop = time.monotonic() + 1.5
        rounds = [0, 0]

        def read(index: int) -> None:
            while time.monotonic() < stop:
                assert same(x * 2, expected)
                rounds[index] += 1

        def evict() -> None:
            while time.monotonic() < stop:
                torch.ops.lms.evict(x)
                time.sleep(0.0005)

        _together(lambda: read(0), lambda: read(1), evict)
        assert min(rounds) > 0
        assert package.memory_stats(device)["evictions"] > 0


def test_writes_from_several_threads_are_all_kept(device: str) -> None:
    """Each thread adds to rows of its own; no write is lost to an eviction beside it."""
    with harness.managed(device):
        x = torch.zeros(64, 1024, device=device).add_(0)
        done = threading.Event()

        def write(index: int) -> None:
            for _ in range(100):
                x[index::3].add_(1)

        def evict() -> None:
            while not done.is_set():
                torch.ops.lms.evict(x)
                time.sleep(0.0005)

        evictor = threading.Thread(target=evict)
        evictor.start()
        try:
            _together(*(lambda i=i: write(i) for i in range(3)))
        finally:
            done.set()
            evictor.join()
        assert same(x, torch.full((64, 1024), 100.0))


@pytest.mark.cpu_only
def test_raw_reads_while_the_block_comes_and_goes(device: str) -> None:
    """A CPU block stays readable at its address at every moment of its moves."""
    import ctypes

    with harness.managed("cpu"):
        x = torch.full((1 << 18,), 7.0).add_(0)
        # The unwrapped method: a pointer that LMS was never asked for, as in foreign code.
        address = torch._C.TensorBase.data_ptr(x)
        view = (ctypes.c_float * x.numel()).from_address(address)
        stop = time.monotonic() + 1.5
        wrong: list[float] = []

        def read() -> None:
            while time.monotonic() < stop:
                for index in range(0, x.numel(), 4096):
                    if view[index] != 7.0:
                        wrong.append(view[index])

        def move() -> None:
            while time.monotonic() < stop:
                send_away(x)
                x.sum()

        _together(read, move)
        assert not wrong


def test_backward_threads(device: str) -> None:
    """Several backward passes over one set of weights, from several threads."""

    def run() -> list[torch.Tensor]:
        seed()
        models = [mlp().to(device) for _ in range(4)]
        losses = [
            (m(reference(32, 64, value=i).to(device))).square().mean() for i, m in enumerate(models)
        ]
        _together(*(loss.backward for loss in losses))
        return [p.grad for m in models for p in m.parameters()]

    expected = run()
    with harness.managed(device, stress=True) as package:
        got = run()
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
        assert package.memory_stats(device)["evictions"] > 0


def test_saved_tensors_are_away_between_two_walks(device: str) -> None:
    """retain_graph: everything that the graph holds leaves between the walks."""
    seed()
    plain = mlp().to(device)
    x = reference(32, 64).to(device)
    loss = plain(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    seed()
    with harness.managed(device) as package:
        model = mlp().to(device)
        loss = model(x * 1).square().mean()
        for last in (False, True):
            assert package.reclaim_inactive(device) > 0
            loss.backward(retain_graph=not last)
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert same(a.grad, b.grad)


def test_hook_that_evicts(device: str) -> None:
    """A hook in mid-backward that sends everything away: what is in use stays."""
    seed()
    plain = mlp().to(device)
    x = reference(32, 64).to(device)
    plain(x).square().mean().backward()
    seed()
    with harness.managed(device) as package:
        model = mlp().to(device)

        def evict_all(*_: object) -> None:
            package.reclaim_inactive(device)

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(evict_all)
        for module in model:
            module.register_forward_hook(evict_all)
        model(x * 1).square().mean().backward()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert same(a.grad, b.grad)
        assert package.memory_stats(device)["evictions"] > 0


def _outcome(program: str, *arguments: str) -> str:
    """What a program prints, in a process of its own, which may hang."""
    done = subprocess.run(
        [*forked.command(), "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


FILL = """
import threading
import torch, torch_lms
torch.set_num_threads(1)
torch_lms.enable(device="cpu", limit="25MiB", min_block=1, host_limit="1GiB")
count = (15 << 20) // 8
filled = [torch.full((count,), float(i)).add_(0) for i in range(4)]
added = [torch.full((count,), float(i)).add_(0) for i in range(4)]
def fill():
    for _ in range(12):
        for i, x in enumerate(filled):
            x.untyped_storage().fill_(i)
def add():
    for _ in range(12):
        for i in range(4):
            total = added[i] + added[(i + 1) % 4]
            assert total[0].item() == i + (i + 1) % 4
threads = [threading.Thread(target=work) for work in (fill, add, add)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("evicted", torch_lms.memory_stats("cpu")["evictions"] > 100)
"""


@pytest.mark.cpu_only
def test_an_operator_that_keeps_the_interpreter_waits_for_room(device: str) -> None:
    """`UntypedStorage.fill_` keeps Python's lock, which the operators it waits for need."""
    harness.lms()
    assert _outcome(FILL) == "evicted True\n"


DRAW = """
import threading
import torch, torch_lms
torch.set_num_threads(1)
torch_lms.enable(device="cpu", limit="25MiB", min_block=1 << 20, host_limit="1GiB")
count = (7 << 20) // 4
chances = [torch.zeros(count).add_(i % 2) for i in range(4)]
added = [torch.full((count,), float(i)).add_(0) for i in range(4)]
def draw():
    for _ in range(12):
        for i, x in enumerate(chances):
            drawn = torch.bernoulli(x)
            assert drawn[0].item() == drawn[-1].item() == i % 2
            del drawn
def add():
    for _ in range(24):
        for i in range(4):
            total = added[i] + added[(i + 1) % 4]
            assert total[0].item() == i + (i + 1) % 4
errors = []
def guard(work):
    try:
        work()
    except Exception as error:
        errors.append(str(error)[:200])
threads = [threading.Thread(target=guard, args=(work,)) for work in (draw, draw, add, add)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(errors, "evicted", torch_lms.memory_stats("cpu")["evictions"] > 50)
"""


@pytest.mark.cpu_only
def test_operators_that_draw_find_room_beside_others(device: str) -> None:
    """They allocate under the generator's lock, where nobody can be waited for."""
    harness.lms()
    assert _outcome(DRAW) == "[] evicted True\n"


TOGGLE = """
import sys, threading, time
import torch, torch_lms
device = sys.argv[1]
x = torch.randn(128, 128).to(device)
expected = x @ x
# Thread 0 switches; the others work on both sides of each switch, and wait at it.
before, after = threading.Barrier(3, timeout=60), threading.Barrier(3, timeout=60)
wrong = []
def work(index):
    mine = x * (index + 1)
    wanted = mine * 2
    for _ in range(ROUNDS):
        before.wait()
        after.wait()
        for _ in range(3):
            if not torch.equal(x @ x, expected) or not torch.equal(mine * 2, wanted):
                wrong.append(index)
ROUNDS = 20
threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
for thread in threads:
    thread.start()
evictions = 0
for turn in range(ROUNDS):
    before.wait()
    if turn % 2 == 0:
        torch_lms.enable(min_block="4KiB", device=device, stress=True)
    else:
        evictions += torch_lms.memory_stats(device)["evictions"]
        torch_lms.disable()
    after.wait()
for thread in threads:
    thread.join()
print("wrong", len(wrong), "evicted", evictions > 0)
"""


def test_enable_and_disable_between_operators_of_other_threads(device: str) -> None:
    """Managing begins and ends while other threads live, and none is inside an operator.

    (Beside running operators it cannot: PyTorch's dispatch tables may not change under them.)
    """
    harness.lms()
    assert _outcome(TOGGLE, device) == "wrong 0 evicted True\n"
