"""Traps: pointers that leave PyTorch, and memory that belongs to others as well."""

from __future__ import annotations

import copy
import ctypes
import io
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from stress import harness
from stress.probe import block, reference, same, send_away, state
from torch import multiprocessing

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE = (64, 96)
COUNT = 64 * 96


def _by_pointer(x: torch.Tensor) -> torch.Tensor:
    buffer = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    return torch.tensor(list(buffer)).view(x.shape)


def _by_storage(x: torch.Tensor) -> torch.Tensor:
    pointer = x.untyped_storage().data_ptr()
    buffer = (ctypes.c_float * x.numel()).from_address(pointer)
    return torch.tensor(list(buffer)).view(x.shape)


def _by_file(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "data_ptr": _by_pointer,
    "storage data_ptr": _by_storage,
    "numpy": lambda x: torch.tensor(x.numpy().tolist()),
    "asarray": lambda x: torch.tensor(np.asarray(x).tolist()),
    "dlpack to numpy": lambda x: torch.tensor(np.from_dlpack(x).tolist()),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "save": _by_file,
    "deepcopy": copy.deepcopy,
    "storage bytes": lambda x: torch.frombuffer(
        bytearray(x.untyped_storage().tolist()), dtype=torch.float32
    ).view(x.shape),
    "storage clone": lambda x: torch.empty(0).set_(x.untyped_storage().clone()).view(x.shape),
    "items": lambda x: torch.tensor([[v.item() for v in row] for row in x]),
    "frombuffer": lambda x: torch.frombuffer(
        bytearray(memoryview(x.numpy()).cast("B")), dtype=torch.float32
    ).view(x.shape),
}


@pytest.mark.parametrize("how", READS)
def test_read_of_an_absent_cpu_block(how: str) -> None:
    """Every way to look at the bytes gives the right ones."""
    with harness.managed("cpu"):
        x = block(*SHAPE, device="cpu")
        send_away(x)
        assert same(READS[how](x), reference(*SHAPE))
        assert same(x, reference(*SHAPE))


def test_pointer_stays_good_under_stress() -> None:
    """A pointer once taken reads and writes the live bytes, however many operators run."""
    with harness.managed("cpu", stress=True):
        x, plain = block(*SHAPE, device="cpu"), reference(*SHAPE)
        array = x.numpy()
        pointer = (ctypes.c_float * COUNT).from_address(x.data_ptr())
        for step in range(5):
            x.mul_(2)
            plain.mul_(2)
            assert same(torch.tensor(array.tolist()), plain)
            array[step] = step
            pointer[COUNT - 1 - step] = -step
            plain[step] = step
            plain.view(-1)[COUNT - 1 - step] = -step
            assert same(x + 0, plain), f"a raw write was lost at step {step}"
        torch.ops.lms.evict(x)
        assert same(torch.tensor(array.tolist()), plain)


def test_memory_that_is_not_ours() -> None:
    """Storages over someone else's memory are left alone."""
    with harness.managed("cpu", stress=True):
        own = np.ones(SHAPE, dtype=np.float32)
        x = torch.from_numpy(own)
        y = x * 2
        assert state(x) == "unmanaged"
        own += 1
        assert same(x * 2, y * 2)
        raw = bytearray(4 * COUNT)
        z = torch.frombuffer(raw, dtype=torch.float32)
        z.add_(1)
        assert state(z) == "unmanaged"
        assert np.frombuffer(raw, dtype=np.float32).sum() == COUNT


def test_mapped_file(tmp_path: object) -> None:
    """Tensors over a mapped file stay what they are."""
    path = f"{tmp_path}/weights.pt"
    torch.save({"w": reference(*SHAPE)}, path)
    with harness.managed("cpu", stress=True):
        w = torch.load(path, mmap=True)["w"]
        for _ in range(3):
            assert same(w * 1, reference(*SHAPE))
        assert state(w) == "unmanaged"


def test_shared_memory_is_left_alone() -> None:
    """IPC: what another process maps stays where that process maps it."""
    with harness.managed("cpu", stress=True):
        x = block(*SHAPE, device="cpu")
        assert state(x) == "absent"  # stress sends it away after each operator
        x.share_memory_()
        assert same(x, reference(*SHAPE))
        assert not torch.ops.lms.evict(x)
        child = os.fork()
        if child == 0:
            try:
                x.numpy()[:] += 1
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert same(x, reference(*SHAPE) + 1)


def test_distributed_buckets_cpu() -> None:
    """DDP's flat buckets, and collectives in flight, over gloo."""
    import torch.distributed as dist
    from stress.networks import mlp
    from stress.registry import seed

    def run() -> list[torch.Tensor]:
        seed()
        model = torch.nn.parallel.DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters())
        out = []
        for step in range(3):
            optimizer.zero_grad()
            x = reference(32, 64, value=step)
            model(x).square().mean().backward()
            optimizer.step()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            work = dist.all_reduce(flat, async_op=True)
            work.wait()
            out.append(flat)
        return out + [p.detach() for p in model.parameters()]

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        expected = [t.clone() for t in run()]
        with harness.managed("cpu", stress=True) as package:
            got = run()
            assert all(same(a, b) for a, b in zip(got, expected, strict=True))
            assert package.memory_stats("cpu")["evictions"] > 0
    finally:
        dist.destroy_process_group()


@pytest.mark.gpu
def test_triton_kernel_over_absent_blocks() -> None:
    """A raw launch whose arguments are all away."""
    from stress.accelerated import axpy

    with harness.managed("cuda"):
        x, y = block(*SHAPE, device="cuda"), block(*SHAPE, device="cuda", value=5)
        out = block(*SHAPE, device="cuda", value=6)
        for tensor in (x, y, out):
            send_away(tensor)
        axpy(x, y, out, 2.0)
        assert same(
            out, torch.addcmul(reference(*SHAPE, value=5), reference(*SHAPE), torch.tensor(2.0))
        )
        axpy(out, x, y, 1.0)
        expected = out.cpu() + x.cpu()
        torch.ops.lms.evict(y)
        assert same(y, expected)
        assert same(out + x, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["dlpack", "interface", "pointer"])
def test_pointers_on_the_gpu(how: str) -> None:
    """A device pointer that was handed out keeps reading and writing the live bytes."""
    with harness.managed("cuda", stress=True):
        x, plain = block(*SHAPE, device="cuda"), reference(*SHAPE)
        if how == "dlpack":
            alias = torch.from_dlpack(x)
        else:

            class Holder:
                __cuda_array_interface__ = (
                    x.__cuda_array_interface__
                    if how == "interface"
                    else {
                        "shape": SHAPE,
                        "typestr": "<f4",
                        "data": (x.data_ptr(), False),
                        "version": 3,
                    }
                )

            alias = torch.as_tensor(Holder(), device="cuda")
        for _ in range(3):
            alias.add_(1)
            plain.add_(1)
            assert same(x, plain)
            x.mul_(2)
            plain.mul_(2)
            assert same(alias, plain)


def _consume(queue: object, back: object) -> None:
    tensor = queue.get()  # type: ignore[attr-defined]
    tensor.add_(1)
    torch.cuda.synchronize()
    del tensor
    back.put("done")  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_cuda_ipc() -> None:
    """A block that another process has mapped stays in place."""
    context = multiprocessing.get_context("spawn")
    queue, back = context.SimpleQueue(), context.SimpleQueue()
    with harness.managed("cuda", stress=True):
        x = block(*SHAPE, device="cuda")
        child = context.Process(target=_consume, args=(queue, back))
        child.start()
        queue.put(x)
        (x @ x.t()).sum()
        assert back.get() == "done"
        child.join()
        assert child.exitcode == 0
        assert same(x, reference(*SHAPE) + 1)


@pytest.mark.gpu
def test_graph_capture_keeps_its_blocks() -> None:
    """What a captured graph reads by address stays there for the graph's life."""
    with harness.managed("cuda", stress=True) as package:
        x, w = block(64, 64, device="cuda"), block(64, 64, device="cuda", value=5)
        plain_x, plain_w = x.clone(), w.clone()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            (x @ w).relu()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x @ w).relu()
        assert state(x) == "kept" and state(w) == "kept"
        for step in range(4):
            noise = block(256, 256, device="cuda", value=step)
            (noise @ noise).sum()
            package.reclaim_inactive("cuda")
            x.copy_(plain_x * (step + 1))
            graph.replay()
            assert same(y, (plain_x * (step + 1) @ plain_w).relu())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pinned_batches_are_left_alone(device: str) -> None:
    """Pinned memory of a data loader is no block of ours, and stays pinned."""
    with harness.managed(device, stress=True):
        batch = reference(*SHAPE).pin_memory()
        (batch * 2).sum()
        assert batch.is_pinned()
        assert state(batch) == "unmanaged"
        assert same(batch.to("cuda", non_blocking=True), reference(*SHAPE))
