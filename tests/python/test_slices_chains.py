"""Results that wait for who uses them, and are made there row by row: the same bits, and never
there as a whole."""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from test_slices import DEVICES, MIB, bits, numbers, sliced
from torch import Tensor
from torch.nn import functional

import torch_lms

pytestmark = pytest.mark.filterwarnings("ignore")
BLOCK = 1 << 16
LIMIT = 64 * MIB
# A GPU's allocators take memory in 2 MiB.
SCALE = {"cpu": 1, "cuda": 32}


def by_rows() -> int:
    return torch_lms.memory_stats()["slices.by_rows"]


def words(
    device: str,
    classes: int = 2003,
    rows: int = 511,
    dtype: torch.dtype = torch.bfloat16,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """The end of a language model, and back."""
    rows *= SCALE[device]
    hidden = numbers(rows, 16, device=device).requires_grad_()
    head = numbers(classes, 16, device=device, seed=1).requires_grad_()
    target = torch.arange(rows, device=device) % classes
    target[::7] = -100
    logits = hidden.to(dtype) @ head.to(dtype).t()
    result = loss(logits, target) if loss else functional.cross_entropy(logits.float(), target)
    (result if result.dim() == 0 else result.sum()).backward()
    return [result, hidden.grad, head.grad]


def chained(device: str, **settings: object) -> AbstractContextManager[None]:
    chains = {"slices": "chains", "deferred_updates": True}
    return sliced(device, LIMIT * SCALE[device], **chains | settings)


def ignoring(number: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, target: functional.cross_entropy(
        logits.float(), target.clamp(min=0), ignore_index=number
    )


def capped(logits: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy((torch.tanh(logits / 30) * 30).float(), target)


def of_sequences(logits: Tensor, target: Tensor) -> Tensor:
    three = logits.view(7, -1, logits.size(1)).float()  # 511 is 7 times 73
    return functional.cross_entropy(three.reshape(-1, logits.size(1)), target)


def in_double(logits: Tensor, target: Tensor) -> Tensor:
    return functional.nll_loss(functional.log_softmax(logits, -1, dtype=torch.float64), target)


def with_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """More than one look at what waits."""
    logs = functional.log_softmax(logits.float(), -1)
    return functional.nll_loss(logs, target) - 0.1 * (logs.exp() * logs).sum(-1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "mean": None,
    "sum": lambda o, t: functional.cross_entropy(o.float(), t, reduction="sum"),
    "each": lambda o, t: functional.cross_entropy(o.float(), t, reduction="none"),
    "ignores 0": ignoring(0),
    "ignores 1": ignoring(1),
    "ignores 5": ignoring(5),
    "weighted": lambda o, t: functional.cross_entropy(
        o.float(), t, weight=torch.linspace(0.5, 2, o.size(1), device=o.device)
    ),
    "smoothed": lambda o, t: functional.cross_entropy(o.float(), t, label_smoothing=0.1),
    "16 bits": functional.cross_entropy,
    "capped": capped,
    "sequences": of_sequences,
    "double": in_double,
    "entropy": with_entropy,
    "probabilities": lambda o, _: functional.softmax(o.float(), -1).square().mean(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", LOSSES)
def test_bits(loss: str, device: str) -> None:
    plain = bits(words(device, loss=LOSSES[loss]))
    with chained(device):
        got = bits(words(device, loss=LOSSES[loss]))
        assert by_rows() > 0
    assert got == plain


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [2, 3, 1000, 16400, 50257])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sizes(classes: int, dtype: torch.dtype, device: str) -> None:
    rows = max(64, 300_000 // classes)
    plain = bits(words(device, classes, rows, dtype))
    with chained(device):
        assert bits(words(device, classes, rows, dtype)) == plain


@pytest.mark.parametrize("device", DEVICES)
def test_not_there_as_a_whole(device: str) -> None:
    """By default, under a limit that the float32 tensors of logits do not fit."""
    rows, classes = 301, 16411
    plain = bits(words(device, classes, rows))
    logits = 2 * rows * classes * SCALE[device]
    with sliced(device, 3 * logits, deferred_updates=True, recompute=True):
        words(device, classes, rows)  # nothing has left yet
        before = torch_lms.memory_stats()
        assert bits(words(device, classes, rows)) == plain
        after = torch_lms.memory_stats()
    # Its gradient once more, of which the first is not known to be wanted as a whole.
    assert after["slices.by_rows"] - before["slices.by_rows"] >= 2
    assert after["slices.bytes"] == before["slices.bytes"]


@pytest.mark.parametrize("device", DEVICES)
def test_smaller_than_one_tensor_of_them(device: str) -> None:
    rows, classes = 301, 16411
    plain = bits(words(device, classes, rows))
    limit = (rows * classes * 2 + 6 * MIB) * SCALE[device]
    with sliced(device, limit, deferred_updates=True):
        for _ in range(3):
            assert bits(words(device, classes, rows)) == plain


Look = Callable[[Tensor], object]


def saved(tensor: Tensor) -> object:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file).cpu()


def in_thread(tensor: Tensor) -> object:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(tensor.cpu()))
    thread.start()
    thread.join()
    return found[0]


LOOKS: dict[str, Look] = {
    "cpu": lambda t: t.cpu().clone(),
    "item": lambda t: t[3, 5].item(),
    "list": lambda t: t[2].tolist()[:9],
    "sum": lambda t: t.sum().cpu(),
    "view": lambda t: t[:, 3:9].t().reshape(-1).cpu(),
    "product": lambda t: (t @ t.t()).cpu(),
    "matrix, whole": lambda t: (t.t() @ t).sum().cpu(),
    "element by element": lambda t: (t + 1).mul(2).cpu(),
    "add to it": lambda t: t.add_(1).cpu().clone(),
    "fill it": lambda t: t.fill_(2).cpu().clone(),
    "copy into another": lambda t: torch.zeros_like(t).copy_(t).cpu(),
    "add to another": lambda t: torch.ones_like(t).add_(t).cpu(),
    "concatenated": lambda t: torch.cat([t, t]).cpu(),
    "deep copy": lambda t: copy.deepcopy(t).cpu(),
    "saved": saved,
    "thread": in_thread,
    "address": lambda t: t.data_ptr() != 0 and t.cpu().clone(),
    "bytes": lambda t: bytes(t.untyped_storage()[0:64].tolist()),
    "list operator": lambda t: torch._foreach_mul([t, t], 2.0)[1].cpu(),
    "list operator in place": lambda t: (torch._foreach_add_([t], 1.0), t.cpu().clone())[1],
    "norm": lambda t: torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(t)], 1.0) is None,
    "set": lambda t: torch.empty(0, dtype=t.dtype, device=t.device).set_(t).cpu().clone(),
    "complex view": lambda t: torch.view_as_complex(t[:, :2000].reshape(-1, 2)).imag.cpu(),
    "other type": lambda t: t.view(torch.int32).bitwise_and(255).cpu(),
    "other type, in parts": lambda t: t.view(torch.int32).clone().cpu(),
    "shorter type, in parts": lambda t: t.view(torch.int16).clone().cpu(),
    "longer type, in parts": lambda t: t.view(torch.int64).clone().cpu(),
}


def look_result(device: str, look: Look) -> Bits:
    logits = numbers(128 * SCALE[device], 2002, device=device).bfloat16()
    cast = logits.float()
    logs = functional.log_softmax(cast, -1)
    found = look(logs)
    rest = [cast.cpu().clone(), logs.cpu().clone(), logits.cpu().float()]
    return found.numpy().tobytes() if isinstance(found, Tensor) else found, bits(rest)


Bits = tuple[object, object]


def made_and_dropped(device: str) -> Bits:
    """Results that waited, whose bytes are dropped, and written, or what they are made from is."""
    number = numbers(128 * SCALE[device], 2002, device=device, dtype=torch.bfloat16)
    found: list[Tensor] = []
    for write in ("at once", "fill", "add", "source", "chain"):
        source = torch.mul(number, 2)
        cast = source.float()
        if write == "at once":
            cast.fill_(5)
        sums = (cast + 1).sum()  # it is made
        other = number * 2  # others come, and it goes
        if write in ("fill", "at once"):
            cast.fill_(7)
        elif write == "add":
            cast.add_(1)
        else:
            more = cast * 3
            source.zero_()
            if write == "chain":
                cast.zero_()
            found.append(more.cpu())
        found += [cast.cpu().clone(), source.cpu(), sums.cpu(), other.cpu()]
    return None, bits(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stress", [False, "drop"])
def test_what_waited_is_dropped_and_written(stress: bool | str, device: str) -> None:
    plain = made_and_dropped(device)
    with chained(device, stress=stress, recompute=True):
        before = torch_lms.memory_stats()["deferred.in_rows"]
        assert made_and_dropped(device) == plain
        assert torch_lms.memory_stats()["deferred.in_rows"] > before


@pytest.mark.parametrize("device", DEVICES)
def test_of_memory_that_no_allocator_gave(device: str) -> None:
    file = io.BytesIO()
    torch.save(numbers(128 * SCALE[device], 2002, device=device, dtype=torch.bfloat16), file)

    def read() -> list[Tensor]:
        file.seek(0)
        return [functional.log_softmax(torch.load(file).float(), -1).relu()]

    plain = bits(read())
    with chained(device):
        before = torch_lms.memory_stats()["deferred.in_rows"]
        assert bits(read()) == plain
        assert torch_lms.memory_stats()["deferred.in_rows"] > before


def test_what_nobody_waits_for_holds_nothing() -> None:
    with chained("cpu"):
        before = torch_lms.memory_stats("cpu")
        logits = torch.mul(numbers(128, 2002, device="cpu", dtype=torch.bfloat16), 2)
        cast = logits.float()
        stats = torch_lms.memory_stats("cpu")
        assert stats["deferred.in_rows"] > before["deferred.in_rows"]
        assert stats["blocks.current"] > before["blocks.current"]
        del logits, cast
        assert torch_lms.memory_stats("cpu")["blocks.current"] == before["blocks.current"]
        # Nor what Python has had in hand, but as long as it has.
        logits = torch.mul(numbers(128, 2002, device="cpu", dtype=torch.bfloat16), 2)
        expected = logits.float().view(torch.int32).sum().item()
        cast = logits.float()
        storage = cast.untyped_storage()
        assert cast.untyped_storage().nbytes() == 4 * cast.numel()
        del logits, cast
        assert torch_lms.memory_stats("cpu")["blocks.current"] > before["blocks.current"]
        again = torch.empty(0, dtype=torch.int32).set_(storage)
        assert again.sum().item() == expected
        del again, storage
        cast = torch.mul(numbers(128, 2002, device="cpu", dtype=torch.bfloat16), 2).float()
        assert cast.untyped_storage().nbytes() == 4 * cast.numel()
        del cast
        assert torch_lms.memory_stats("cpu")["blocks.current"] == before["blocks.current"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("look", LOOKS)
def test_who_looks(look: str, device: str) -> None:
    plain = look_result(device, LOOKS[look])
    with chained(device):
        before = torch_lms.memory_stats()["deferred.in_rows"]
        got = look_result(device, LOOKS[look])
        assert torch_lms.memory_stats()["deferred.in_rows"] > before
    assert got == plain


def changes(device: str, change: Callable[[Tensor], object]) -> list[Tensor]:
    """What is read has been changed since."""
    logits = numbers(128 * SCALE[device], 2002, device=device).bfloat16()
    cast = logits.float()
    logs = functional.log_softmax(cast, -1)
    change(logits)
    target = torch.arange(len(logs), device=device) % 2002
    return [functional.nll_loss(logs, target), logs.clone(), cast.clone()]


def resize(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "add": lambda t: t.add_(1),
    "view": lambda t: t[3:5].zero_(),
    "data": lambda t: setattr(t, "data", torch.zeros_like(t)),
    "freed": resize,
    "list": lambda t: torch._foreach_mul_([t], 2.0),
    "out": lambda t: torch.neg(t, out=t),
    "address": lambda t: t.data_ptr(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", CHANGES)
def test_who_changes_what_is_read(change: str, device: str) -> None:
    plain = bits(changes(device, CHANGES[change]))
    with chained(device):
        assert bits(changes(device, CHANGES[change])) == plain


@pytest.mark.parametrize("device", DEVICES)
def test_the_labels_are_those_of_the_call(device: str) -> None:
    def program() -> list[Tensor]:
        rows = 128 * SCALE[device]
        logits = numbers(rows, 2002, device=device).bfloat16().requires_grad_()
        target = torch.arange(rows, device=device) % 2002
        loss = functional.cross_entropy(logits.float(), target)
        target = target.clone()
        loss.backward()
        return [loss, logits.grad]

    plain = bits(program())
    with chained(device):
        assert bits(program()) == plain


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_the_same_for_all_rows(device: str) -> None:
    """An operand that each part needs as a whole has not been made either."""

    def program() -> list[Tensor]:
        x = numbers(128 * SCALE[device], 2002, device=device).bfloat16().requires_grad_()
        one = numbers(1, 64 * 2002, device=device).bfloat16().requires_grad_()
        big = x.float().reshape(-1, 64 * 2002)
        y = big[: len(big) // 2] * one.float()
        (y * y).sum().backward()
        return [y, x.grad, one.grad]

    plain = bits(program())
    with chained(device):
        assert bits(program()) == plain


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_results_lie_where_the_kernel_lays_them(dtype: torch.dtype, device: str) -> None:
    """Not where its meta kernel does: of 16-bit numbers in another order that is another place."""

    def program() -> list[Tensor]:
        x = numbers(512 * SCALE[device], 130, device=device).t().to(dtype)
        # Of a block: what is below one would be copied as it is here.
        one = numbers(1, 50000, device=device, seed=1).to(dtype)[0, 7].expand(x.shape)
        return [f(one, x) for f in (torch.mul, torch.add, torch.div)]

    plain, strides = program(), [y.stride() for y in program()]
    with chained(device):
        ours = program()
        assert [y.stride() for y in ours] == strides
        assert [float(y.flatten()[1]) for y in ours] == [float(y.flatten()[1]) for y in plain]
        assert bits(ours) == bits(plain)


@pytest.mark.parametrize("device", DEVICES)
def test_off_with_results_that_wait(device: str) -> None:
    logits = numbers(128 * SCALE[device], 2002, device=device).bfloat16()
    plain = bits([functional.log_softmax(logits.float(), -1)])
    with chained(device):
        before = torch_lms.memory_stats()["deferred.in_rows"]
        logs = functional.log_softmax(logits.float(), -1)
        assert torch_lms.memory_stats()["deferred.in_rows"] > before
    assert bits([logs]) == plain


@pytest.mark.parametrize("device", DEVICES)
def test_turned_off_while_they_wait(device: str) -> None:
    logits = numbers(128 * SCALE[device], 2002, device=device).bfloat16()
    plain = bits([functional.log_softmax(logits.float(), -1)])
    with chained(device):
        logs = functional.log_softmax(logits.float(), -1)
        limit = LIMIT * SCALE[device]
        torch_lms.enable(limit=limit, device=device, min_block=BLOCK, deferred_updates=False)
        assert bits([logs]) == plain


def test_a_class_that_is_none() -> None:
    logits = numbers(128, 2002, device="cpu")
    target = torch.full((128,), 5000)
    with pytest.raises(IndexError) as plain:
        functional.cross_entropy(logits.double(), target)
    with chained("cpu"), pytest.raises(IndexError) as got:
        functional.cross_entropy(logits.double(), target)
    assert str(got.value) == str(plain.value)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_kept(device: str) -> None:
    with chained(device):
        for _ in range(3):
            words(device)
            gc.collect()
            torch_lms.memory_stats()
        first = torch_lms.memory_stats()["blocks.current"]
        for _ in range(5):
            words(device)
        gc.collect()
        torch_lms.memory_stats()  # looks for what nobody wants
        assert torch_lms.memory_stats()["blocks.current"] == first


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stress", ["on", "drop"])
def test_under_stress(device: str, stress: str) -> None:
    plain = [bits(words(device, loss=loss)) for loss in LOSSES.values()]
    with chained(device, stress=stress, recompute=True):
        got = [bits(words(device, loss=loss)) for loss in LOSSES.values()]
    assert got == plain


@pytest.mark.parametrize("device", DEVICES)
def test_threads_at_once(device: str) -> None:
    plain = bits(words(device))
    got: list[object] = []
    with chained(device):
        threads = [
            threading.Thread(target=lambda: got.append(bits(words(device)))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [plain] * 4


class Words(torch.nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(classes, 32)
        self.layers = torch.nn.Sequential(
            *[torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
              for _ in range(3)]
        )
        self.head = torch.nn.Linear(32, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def train(device: str, steps: int, classes: int, rows: int) -> tuple[list[float], object]:
    torch.manual_seed(0)
    model = Words(classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        tokens = (torch.arange(rows + 1, device=device) * 17 + step) % classes
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:-1])
        loss = functional.cross_entropy(logits.float(), tokens[1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, bits(list(model.parameters()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slices", ["auto", "chains"])
def test_planned(device: str, slices: str) -> None:
    scale = SCALE[device]
    rows, classes = 256 * scale, 16411
    plain = train(device, 12, classes, rows)
    # oneDNN's product of 16-bit numbers takes scratch memory, on some machines 7 MiB.
    with sliced(device, 25 * MIB * scale, slices=slices, deferred_updates=True, plan="now"):
        before = torch_lms.memory_stats()
        got = train(device, 12, classes, rows)
        stats = torch_lms.memory_stats()
    assert got == plain
    assert stats["slices.by_rows"] - before["slices.by_rows"] >= 10
    # Where they are not there as a whole everything may fit.
    assert stats["plan.steps"] >= 3 or device == "cuda"
