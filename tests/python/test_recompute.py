"""What is dropped and computed again has the same bits, whatever operators do to what they need."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recompute_support import N, Programs, numbers
from torch import Tensor, nn
from torch.nn import functional

PROGRAMS = Programs()
program = PROGRAMS.add


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_dropped(name: str) -> None:
    PROGRAMS.check(name)
