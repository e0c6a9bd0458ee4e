"""Traps of stream order: each race as wide as can be, with large blocks and busy streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import stream_programs
import torch
from stress import harness
from stress.probe import block, repeatable_cudnn, same, send_away, state

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
LARGE = (64, 1 << 18)  # 64 MiB: a millisecond and more over the link
BUSY = 50_000_000  # cycles: some 25 ms


def _large(value: float) -> torch.Tensor:
    return torch.full(LARGE, value, device="cuda").add_(0)


def _copy_unseen(to: int, source: int, size: int) -> None:
    """Copies on the current stream, by the runtime alone."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    names = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    runtime = ctypes.CDLL(next(name for name in names if "libcudart.so" in name))
    code = runtime.cudaMemcpyAsync(
        ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), 4, stream
    )
    assert code == 0


def test_current_stream_is_asked_at_each_operator() -> None:
    """Operators inside ``with stream`` wait for their own page-ins, and those for their stream."""
    with harness.managed("cuda"):
        side = torch.cuda.Stream()
        x, y = _large(1), _large(2)
        for step in range(6):
            send_away(x)
            send_away(y)
            torch.cuda._sleep(BUSY)  # the default stream lags: a wait on it alone comes too late
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(BUSY)
                x.add_(y)
                z = x * 2
            torch.cuda.current_stream().wait_stream(side)
            assert bool((z == 2 * (1 + 2 * (step + 1))).all())
            assert bool((x == 1 + 2 * (step + 1)).all())


def test_stream_made_after_enable_and_per_thread() -> None:
    """Each thread's own stream is the one that counts."""
    import threading

    with harness.managed("cuda", stress=True):
        found: list[bool] = []

        def work(index: int) -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.full((1024, 1024), float(index), device="cuda")
                for _ in range(20):
                    torch.cuda._sleep(BUSY // 50)
                    x = x + 1
                found.append(bool((x == index + 20).all()))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 3


def test_reload_before_its_page_out_finished() -> None:
    """Out and back at once, behind work that is still queued: the copy in reads finished bytes."""
    with harness.managed("cuda"):
        x = _large(0)
        for step in range(10):
            torch.cuda._sleep(BUSY)
            x.fill_(step + 1)
            send_away(x)
            y = x + 0.5
            send_away(x)
            assert bool((y == step + 1.5).all())
            assert bool((x == step + 1).all())


def test_memory_reused_before_the_copy_out_finished() -> None:
    """The freed memory goes to the next tensor at once, which is filled while the copy runs."""
    with harness.managed("cuda"):
        for step in range(10):
            x = _large(step)
            torch.cuda._sleep(BUSY)
            x.add_(1)
            send_away(x)
            others = [_large(-1.0) for _ in range(2)]
            assert bool((x == step + 1).all())
            assert all(bool((other == -1).all()) for other in others)


def test_memory_reused_by_a_side_stream() -> None:
    """The same, with the new tensor made and filled on another stream."""
    with harness.managed("cuda"):
        side = torch.cuda.Stream()
        for step in range(10):
            x = _large(step)
            torch.cuda._sleep(BUSY)
            x.add_(1)
            send_away(x)
            with torch.cuda.stream(side):
                other = torch.full(LARGE, -1.0, device="cuda")
                other.mul_(2)
            assert bool((x == step + 1).all())
            side.synchronize()
            assert bool((other == -2).all())


def test_page_in_memory_still_read_by_another_stream() -> None:
    """Memory freed on one stream is given to a page-in on another."""
    with harness.managed("cuda", limit="256MiB"):
        side = torch.cuda.Stream()
        blocks = [_large(i) for i in range(8)]
        for step in range(24):
            index = (step * 3) % len(blocks)
            torch.cuda._sleep(BUSY // 10)
            if step % 2:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    blocks[index].add_(1)
                torch.cuda.current_stream().wait_stream(side)
            else:
                blocks[index].add_(1)
        counts = [sum((s * 3) % 8 == i for s in range(24)) for i in range(8)]
        for index, x in enumerate(blocks):
            assert bool((x == index + counts[index]).all())


def test_record_stream_is_honoured() -> None:
    """``record_stream`` on managed memory keeps its promise."""
    with harness.managed("cuda"):
        side = torch.cuda.Stream()
        for step in range(10):
            x = _large(step)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(BUSY)
                y = x + 1
            x.record_stream(side)
            del x
            z = _large(-5.0)
            side.synchronize()
            assert bool((y == step + 1).all())
            assert bool((z == -5).all())


@pytest.mark.parametrize("program", stream_programs.PROGRAMS, ids=lambda p: p.__name__)
def test_streams_of_a_block_that_moved(program: Callable[..., stream_programs.Result]) -> None:
    """A block is back on another stream, or was recorded, and dies while its bytes are read."""
    with harness.managed("cuda"):
        for _ in range(3):
            result = program(send_away)
            torch.cuda.synchronize()
            for tensor, value in result:
                assert bool((tensor.cpu() == value).all())


@pytest.mark.parametrize("seed", range(8))
def test_random_streams(seed: int) -> None:
    """Random programs on four streams."""
    with harness.managed("cuda"):
        result = stream_programs.random_program(seed, torch.ops.lms.evict)
        torch.cuda.synchronize()
        for tensor, value in result:
            assert bool((tensor.cpu() == value).all())


def test_unseen_read_of_what_is_fetched_ahead() -> None:
    """An extension's kernel reads on the current stream what the lane is still copying."""
    with harness.managed("cuda"):
        address = torch.Tensor.data_ptr.__wrapped__  # type: ignore[attr-defined]
        for step in range(5):
            x, into = stream_programs.large(step), stream_programs.large(-1)
            torch.ops.lms.access(into)
            send_away(x)
            assert torch.ops.lms.fetch(x)
            _copy_unseen(address(into), address(x), x.numel() * x.element_size())
            assert bool((into.cpu() == step).all())
            assert bool((x.cpu() == step).all())


def test_host_reads_during_the_copy_out() -> None:
    """``item()`` right after an eviction."""
    with harness.managed("cuda"):
        x = _large(0)
        for step in range(5):
            torch.cuda._sleep(BUSY)
            x.fill_(step)
            send_away(x)
            assert x[7, 7].item() == step


def test_same_algorithm_when_memory_is_short() -> None:
    """cuDNN must not fall back to another algorithm, and so other bits, near the limit."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(32, 64, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(64, 64, 5, padding=2),
        ).cuda()
        x = torch.randn(8, 32, 128, 128, device="cuda")
        out = model(x)
        out.square().mean().backward()
        return [out.detach(), *(p.grad for p in model.parameters())]

    def bits() -> list[torch.Tensor]:
        with repeatable_cudnn():
            return [t.cpu() for t in run()]

    expected, again = bits(), bits()
    if not all(same(a, b) for a, b in zip(expected, again, strict=True)):
        pytest.skip("two plain runs differ")
    limit, tried = 96 << 20, []
    for _ in range(6):
        try:
            with harness.managed("cuda", limit=limit):
                got = bits()
            assert all(same(a, b) for a, b in zip(got, expected, strict=True)), f"at {limit}"
            return
        except torch.OutOfMemoryError as error:
            tried.append(limit)
            limit = harness.smallest_workable_limit(error)
    pytest.fail(f"no limit worked: {tried}")


def test_two_devices() -> None:
    """Each device has blocks and a limit of its own; copies between them are right."""
    if torch.cuda.device_count() < 2:
        pytest.skip("2 CUDA devices needed")
    with harness.managed("cuda:0", stress=True) as package:
        package.enable(device="cuda:1", min_block="4KiB", stress=True)
        x = block(512, 512, device="cuda:0")
        y = x.to("cuda:1")
        for _ in range(4):
            x = x * 0.5
            with torch.cuda.device(1):
                y = y * 0.5
        assert same(x, y)
        assert package.memory_stats("cuda:0")["evictions"] > 0
        assert package.memory_stats("cuda:1")["evictions"] > 0


def test_cpu_and_gpu_both_managed() -> None:
    """Both managers at once, with copies both ways."""
    with harness.managed("cuda", stress=True) as package:
        package.enable(device="cpu", min_block="4KiB", stress=True)
        host = block(256, 256, device="cpu")
        card = host.cuda()
        for _ in range(4):
            host = host * 0.5 + card.cpu()
            card = card * 0.5 + host.cuda()
        check_host, check_card = block(256, 256, device="cpu"), None
        package.disable()
        check_card = check_host.cuda()
        for _ in range(4):
            check_host = check_host * 0.5 + check_card.cpu()
            check_card = check_card * 0.5 + check_host.cuda()
        assert same(host, check_host)
        assert same(card, check_card)
        assert state(host) == "unmanaged"
