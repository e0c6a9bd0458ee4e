"""What is dropped and computed again has the same bits, whatever the program does in between."""

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
from stress.compare import bits_of, differences
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_lms

N = 4096
Program = Callable[[], Any]
PROGRAMS: dict[str, tuple[Program, int]] = {}


def program(function: Program | None = None, *, min_block: int = 1) -> Any:
    """A program whose result is compared; ``min_block`` decides which tensors are small."""

    def put(one: Program) -> Program:
        PROGRAMS[one.__name__] = one, min_block
        return one

    return put if function is None else put(function)


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers that an operator has made of others, so that it is known how they came about."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (N,)), generator=generator, dtype=dtype) * 1


COUNTS = ("evictions", "drops", "remakes", "bytes_remade", "plan.steps")


def counts(before: dict[str, int] | None = None) -> dict[str, int]:
    """What has been counted since ``before``: counters go on from one enable() to the next."""
    stats = torch_lms.memory_stats("cpu")
    return {name: int(stats.get(name, 0)) - (before or {}).get(name, 0) for name in COUNTS}


def drop_everything(one: Program, min_block: int = 1, **settings: Any) -> dict[str, int]:
    """Runs it plainly and with everything dropped, holds both against each other; the counts."""
    expected = bits_of(one())
    with torch_lms.managed(
        device="cpu", limit="256MiB", min_block=min_block, stress="drop", **settings
    ):
        before = counts()
        result = one()
        assert not differences(expected, bits_of(result))
        stats = counts(before)
    assert not differences(expected, bits_of(result)), "after disable()"
    return stats


# Inputs that change, or die


@program
def inputs_are_written_before_they_are_needed() -> Any:
    a = numbers(1)
    b = a * 2
    c = b + a
    a.add_(1)
    b.mul_(3)
    return a, b, c


@program
def inputs_die() -> Any:
    a = numbers(1)
    b = a * 2
    del a
    c = b.exp()
    del b
    return c


@program
def inputs_die_whose_making_is_unknown() -> Any:
    a = torch.rand(N, generator=torch.Generator().manual_seed(3))
    b = a.sin()
    del a
    return b, b + 1


@program
def bytes_of_the_dead_are_let_go_by_another_death() -> Any:
    # The bytes of `a` stay for `c`; `c` then stays for good, and nobody needs them any more.
    a = torch.rand(N, generator=torch.Generator().manual_seed(3))
    x = torch.rand(N, generator=torch.Generator().manual_seed(4))
    c = a + x
    d = c + 1
    del a
    c.data_ptr()
    del x
    return c, d


# Operators that read what they overwrite


@program
def copies_of_itself() -> Any:
    x = numbers(1, 64, 64) * 2
    x.copy_(x.detach())
    y = numbers(2, 64, 64, dtype=torch.cfloat) * 2
    y.copy_(y.conj())
    return x, y


@program
def fills_with_its_own_element() -> Any:
    x, y = numbers(1, 64, 64), numbers(2)
    x.fill_(x[3, 4])
    y.fill_(y[5])
    return x, y


# Small tensors, of which no block knows


@program(min_block=N)
def small_inputs_change() -> Any:
    x, out = numbers(1, 1024, 4), []

    def add_to_data(w: Tensor) -> None:
        w.data.add_(1)

    def multiply_detached(w: Tensor) -> None:
        w.detach().mul_(2)

    def zero_without_grad(w: Tensor) -> None:
        with torch.no_grad():
            w.zero_()

    def fill_in_inference(w: Tensor) -> None:
        with torch.inference_mode():
            w.detach().fill_(3)

    def set_item(w: Tensor) -> None:
        w.detach()[1] = 9

    def fill_storage(w: Tensor) -> None:
        w.untyped_storage().fill_(0)

    def set_in_storage(w: Tensor) -> None:
        w.untyped_storage()[0] = 1

    def copy_storage(w: Tensor) -> None:
        w.untyped_storage().copy_(torch.ones(4).untyped_storage())

    for change in (
        add_to_data,
        multiply_detached,
        zero_without_grad,
        fill_in_inference,
        set_item,
        fill_storage,
        set_in_storage,
        copy_storage,
    ):
        w = torch.rand(4, generator=torch.Generator().manual_seed(3)).requires_grad_()
        y = x * w
        change(w)
        out += [y.detach(), w.detach()]
    return out


@program(min_block=N)
def small_inputs_get_other_memory() -> Any:
    x = numbers(1, 1024, 4)
    w, v = numbers(2, 4), numbers(3, 4)
    y, u = x * w, x * v
    w.data = torch.zeros(4)
    v.set_(torch.zeros(4))
    z = x * w
    v.resize_(2000)
    return y, z, u


@program(min_block=N)
def small_inputs_are_written_through_arrays() -> Any:
    x = numbers(1, 1024, 4)
    w, v = numbers(2, 4), numbers(3, 4)
    array = w.numpy()
    y = x * w
    array[0] = 7
    z = x * v
    other = v.numpy()
    u = x + v
    other[1] = 8
    foreign = torch.from_numpy(other.copy())
    s = x * foreign
    foreign.numpy()[:] = 5
    return y, z, u, s


@program
def numbers_of_no_dimension() -> Any:
    x = numbers(1)
    s = torch.tensor(3.0)
    y = x * s
    s.fill_(4)
    z = x + s
    t = x.sum() * 0 + 5
    w = x * t
    t.add_(1)
    return y, z, w, t


# In place


@program
def chains_in_place() -> Any:
    bn = nn.BatchNorm2d(8)
    x, r = numbers(1, 4, 8, 16, 16), numbers(2, 4, 8, 16, 16)
    y = bn(x)
    y.add_(r).relu_()
    z = y * 2
    bn.eval()
    e = bn(x)
    bn.train()
    return y, z, r, e, bn(r), bn.running_mean, bn.running_var


@program
def views_are_written() -> Any:
    x = numbers(1, 64, 64)
    y = x + 1
    x[3:7].mul_(2)
    x.t()[0].zero_()
    x.diagonal().fill_(9)
    z = x * y
    x[::2] = y[1::2]
    return x, y, z


@program
def halves_are_copied() -> Any:
    x, y = numbers(1), numbers(2)
    x[: N // 2].copy_(y[: N // 2])
    x[N // 2 :].copy_(y[N // 2 :])
    z = x + y
    e = torch.empty(2 * N)
    e[:N].copy_(y)
    e[N:].copy_(x)
    return x, z, e


@program
def results_are_given() -> Any:
    a, o = numbers(1), torch.empty(N)
    torch.add(a, 1, out=o)
    b = o * 2
    torch.mul(a, 3, out=o)
    p, q, r = torch.empty(0), torch.empty(0), torch.empty(0)
    torch.exp(a, out=p)
    torch.cat([a, b], out=q)
    torch.mm(a.view(64, 64), b.view(64, 64), out=r)
    g = torch.ops.aten.sigmoid_backward.grad_input(a, b, grad_input=torch.empty(0))
    return a, b, o, p, q, r, g


# Arguments and results of every kind


@program
def several_results() -> Any:
    x = numbers(1, 2, 4, 32, 32)
    pooled = functional.max_pool2d(x, 2, return_indices=True)
    moments, most, top = torch.var_mean(x, 1), x.max(1), x.topk(3)
    del x
    return pooled, moments, tuple(most), tuple(top)


@program
def lists() -> Any:
    xs = [numbers(i, 32, 32) for i in range(4)]
    joined, stacked = torch.cat(xs, 1), torch.stack(xs)
    index = torch.arange(0, 32, 2)
    taken, positive = stacked[:, index, None, index], stacked[stacked > 0]
    xs[0].zero_()
    index.add_(1)
    return joined, stacked, taken, positive, stacked[:, index[:3]]


@program
def lazy_conjugates_and_negatives() -> Any:
    x = numbers(1, 64, 64, dtype=torch.cfloat)
    y = x.conj()
    z, n, q, k = y @ y, y.imag, y + 1, y.clone()
    w = n * 2
    y.add_(1)
    return x, z, w, q, n, k


@program
def layouts() -> Any:
    x = numbers(1, 64, 64)
    last = x.view(1, 64, 8, 8).to(memory_format=torch.channels_last) * 2
    convolved = functional.conv2d(last, numbers(4, 16, 64, 3, 3))
    return (
        x.t() * 2,
        x[::2, 1::3] + 1,
        x.expand(3, 64, 64) * 1,
        x.unfold(0, 8, 4).exp(),
        x.as_strided((10, 10), (1, 3), 7) * 2,
        last,
        convolved,
        convolved.stride(),
    )


@program
def nothing_in_them() -> Any:
    x = torch.empty(0) * 2
    return x + 1, torch.cat([x, numbers(1)]), torch.zeros(0, 5) @ torch.zeros(5, 0)


@program
def random_operators() -> Any:
    torch.manual_seed(0)
    x = numbers(1)
    y = functional.dropout(x, 0.5)
    q, k, v = (numbers(i, 1, 2, 16, 8) for i in range(3))
    noisy = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
    plain = functional.scaled_dot_product_attention(q, k, v)
    return y, y * 2, torch.rand_like(x), noisy, plain, plain * 2


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
    one, min_block = PROGRAMS[name]
    stats = drop_everything(one, min_block)
    assert stats["drops"] > 0 and stats["remakes"] > 0, "nothing was dropped: it shows nothing"


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


def test_what_is_random_is_never_dropped() -> None:
    with torch_lms.managed(device="cpu", limit="64MiB", min_block=1, stress="drop"):
        states = torch.ops.lms.state
        x = numbers(1)
        dropped = functional.dropout(x, 0.5)
        noise = torch.rand(N)
        made = x * 2
        assert states(made) == "dropped"
        assert states(dropped) != "dropped" or bool((dropped == dropped).all())
        assert states(noise) == "absent"


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
    torch_lms.enable(device="cpu", limit=2 * size, min_block=4096, stress="drop")
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
