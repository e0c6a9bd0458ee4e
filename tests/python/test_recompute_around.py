"""What is dropped and computed again has the same bits, whatever the program does around it."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_model import run_on_model
from recompute_support import N, Programs, counts, drop_everything, numbers
from stress.compare import bits_of, differences
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_lms

PROGRAMS = Programs()
program = PROGRAMS.add


# Storages, and raw access


@program
def storages_are_resized() -> Any:
    x = numbers(1)
    y = x * 2
    x.untyped_storage().resize_(0)
    z = y + 1
    d = numbers(3)
    d.untyped_storage().resize_(8 * N)
    d.untyped_storage().resize_(4 * N)
    e = numbers(4)
    f = e * 2
    e.resize_(2 * N)
    h = numbers(4)
    h.resize_(N // 2)
    return y, z, d, f, e[:N], h


@program
def storages_are_replaced() -> Any:
    x = numbers(1)
    y = x * 2
    x.set_(numbers(5))
    w = y + x
    u = numbers(6)
    v = u * 3
    u.data = numbers(7)
    y.data = numbers(8)
    return x, y, w, u, v, v + u


@program
def raw_access() -> Any:
    x = numbers(1)
    y = x * 2
    z = y.exp()
    array = y.numpy()
    array[0] = 5
    x.data_ptr()
    w = torch.from_dlpack(z)
    k = y + 1
    array[1] = 6
    dropped = numbers(2)
    listed = (dropped * 3).tolist(), bytes((dropped[:64] * 4).untyped_storage())
    return x, y, z, w, k, listed, repr(dropped * 5), float((dropped * 7)[3])


@program
def saved_and_copied() -> Any:
    x = numbers(1)
    y = x * 2
    file, old = io.BytesIO(), io.BytesIO()
    torch.save({"y": y, "x": x}, file)
    torch.save(y, old, _use_new_zipfile_serialization=False)
    loaded = [torch.load(io.BytesIO(one.getvalue())) for one in (file, old)]
    shared = (x * 9).share_memory_()
    return loaded, copy.deepcopy(y), pickle.loads(pickle.dumps(y)), shared, y


# Modes


@program
def modes() -> Any:
    x = numbers(1, 64, 64).requires_grad_()
    y = (x * 2) @ x
    with torch.no_grad():
        a = y * 3
    with torch.inference_mode():
        b = y * 4
        c = b + y
    with torch.autocast("cpu", torch.bfloat16):
        d = y @ x
        e = functional.linear(d, x)
        f = d.softmax(0)
    (f.sum() + (d * e).sum() + y.sum()).backward()
    with torch.inference_mode():
        w = d.detach() * 1, y + 1, c.clone()
    return y, a, b.clone(), d, e, f, x.grad, [one.clone() for one in w]


@program
def settings_change() -> Any:
    x, image = torch.arange(N) * 1, numbers(1, 1, 1, 64, 64)
    wide = numbers(2, 512, 512)
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    try:
        y, z = x / 3, x.sqrt()
        s, m = wide.sum(), wide @ wide
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=False):
        c = functional.conv2d(image, numbers(3, 8, 1, 3, 3))
    result = y, z, y * 2, s * 1, m, c
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == "highest"
    return result


@program
def gradients_of_gradients() -> Any:
    x = numbers(1, 64, 64).requires_grad_()
    y = (x @ x).tanh().pow(2).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.square().sum().backward()
    return x.grad, g


@program
def checkpoints() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(True), nn.Dropout(0.2), nn.Linear(32, 32))
    x, y = numbers(1, 64, 32), numbers(2, 64, 32).requires_grad_()
    loss = checkpoint(net, x, use_reentrant=False).sum()
    (loss + checkpoint(net, y, use_reentrant=True).sum()).backward()
    return [weight.grad for weight in net.parameters()], y.grad


@program
def training_and_validation() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    out = []
    for i in range(3):
        loss = net(numbers(i, 4, 3, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        net.eval()
        out += [loss.detach(), net(numbers(i, 4, 3, 16, 16)).detach()]
        net.train()
    return out, net.state_dict()


# What goes on around


@program
def operators_that_fail() -> Any:
    x = numbers(1, 64, 64)
    y = x * 2
    for fails in (
        lambda: y.mm(numbers(2)),
        lambda: y.add_(numbers(3, 5, 5)),
        lambda: y.index_add_(0, torch.tensor([99]), numbers(1, 1, 64)),
        lambda: torch.cat([y, x.view(-1)]),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            fails()
    y.relu_()
    return x, y, y @ x


@program
def several_threads() -> Any:
    x = numbers(1, 128, 128)
    y = x * 2
    z = y @ x
    out: dict[int, Any] = {}

    def work(i: int) -> None:
        a = y + i
        b = z @ a
        out[i] = a, b, (b * z).sum(1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [out[i] for i in range(4)], x, y, z


@program
def forks() -> Any:
    x = numbers(1)
    y = x * 2
    z = y.exp()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, float((z.sum() + y[3]).item()).hex().encode())
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    told = os.read(reading, 100)
    os.close(reading)
    os.close(writing)
    return status, told, x, y, z


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_dropped(name: str) -> None:
    PROGRAMS.check(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_function() -> None:
    def function(x: Tensor) -> Tensor:
        return (x @ x).relu().softmax(1) + x

    compiled = torch.compile(function)

    def run() -> Any:
        x = numbers(1, 64, 64).requires_grad_()
        y = compiled(x * 2)
        y.square().sum().backward()
        return x, y, x.grad

    assert drop_everything(run)["drops"] > 0


def test_random_numbers_are_drawn_again() -> None:
    def run(look: Callable[..., None]) -> Any:
        torch.manual_seed(5)
        own = torch.Generator().manual_seed(6)
        x = numbers(1)
        dropped = functional.dropout(x, 0.5)
        noise = torch.rand(N)
        mine = torch.empty(N).exponential_(generator=own)
        look(dropped, noise, mine)
        return mine, noise, dropped, torch.rand(N), torch.rand(N, generator=own)

    def all_dropped(*tensors: torch.Tensor) -> None:
        assert [torch.ops.lms.state(t) for t in tensors] == ["dropped"] * 3

    expected = bits_of(run(lambda *_: None))
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress="drop"):
        assert bits_of(run(all_dropped)) == expected


def test_convolutions_chosen_by_trying_are_not_run_again() -> None:
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress="drop"):
        x, w = numbers(1, 1, 4, 32, 32), numbers(2, 4, 4, 3, 3)
        with torch.backends.cudnn.flags(benchmark=True):
            tried = functional.conv2d(x, w)
            added = tried + 1
        same = functional.conv2d(x, w)
        assert torch.ops.lms.state(tried) == "absent"
        assert torch.ops.lms.state(added) == "dropped"
        assert torch.ops.lms.state(same) == "dropped"


def test_disable_returns_what_is_dropped_and_enable_begins_anew() -> None:
    expected = [bits_of((numbers(1), numbers(1) * 2, (numbers(1) * 2).exp()))]
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress="drop"):
        x = numbers(1)
        y = x * 2
        z = y.exp()
        assert torch.ops.lms.state(z) == "dropped"
    assert not differences(expected[0], bits_of((x, y, z)))
    x.zero_()  # unheard: nothing is managed
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress="drop"):
        w = y + 1
        y.add_(1)
        assert torch.equal(w, y)
        assert not differences(bits_of(z), bits_of((numbers(1) * 2).exp()))


def test_too_little_memory_to_compute_is_said_and_loses_nothing() -> None:
    size = 1 << 20
    expected = bits_of(numbers(1, size // 4).exp() + 1)
    torch_lms.enable(device="cpu", limit=20 * size, min_block=4096, stress="drop")
    x = numbers(1, size // 4)
    y = x.exp() + 1
    assert torch.ops.lms.state(y) == "dropped"
    torch_lms.enable(device="cpu", limit=size * 3 // 2, min_block=4096, stress="drop")
    with pytest.raises(torch.OutOfMemoryError, match="limit"):
        y.mul_(1)
    with pytest.raises(torch.OutOfMemoryError, match="limit"):
        y.numpy()
    with pytest.raises(torch.OutOfMemoryError, match="limit"):
        x.add_(1)  # y must be computed before
    assert torch.ops.lms.state(y) == "dropped"
    torch_lms.enable(device="cpu", limit=20 * size, min_block=4096, stress="drop")
    assert not differences(expected, bits_of(y))
    z = y * 2
    assert torch.equal(z, y + y)
    torch_lms.disable()
    assert not differences(expected, bits_of(y))


def test_nothing_is_dropped_unless_told() -> None:
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress=True):
        before = counts()
        bits_of(training_and_validation())
        stats = counts(before)
    assert stats["evictions"] > 0 and stats["drops"] == 0 and stats["remakes"] == 0


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda x: x.conj().imag])
def test_lists_of_lazy_views_are_read_from_what_is_there(view):
    """tolist() reads the result of an operator of its own, which nothing else announces."""
    plain = view(torch.arange(4096.0) * (1 + 2j)).tolist()
    with torch_lms.managed(limit="64MiB", device="cpu", min_block=1, stress="drop", recompute=True):
        x = torch.arange(4096.0) * (1 + 2j)
        assert view(x).tolist() == plain
        assert torch_lms.memory_stats()["drops"] > 0


def test_small_gradients_are_added_up_in_place_as_without_lms() -> None:
    run_on_model("gradients_on_model.py")
