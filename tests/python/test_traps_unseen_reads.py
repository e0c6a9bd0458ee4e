"""Code of PyTorch's in C++ that reads the memory of CPU tensors itself, past every operator."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
import torch
from stress import harness
from stress.children import run_script
from stress.probe import state
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

import torch_lms

N = 5000
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def module() -> torch.jit.ScriptModule:
    generator = torch.Generator().manual_seed(5)
    made = torch.nn.Linear(64, 64)
    for weight in made.parameters():
        weight.data = torch.randn(weight.shape, generator=generator)
    made.register_buffer("bias_twice", made.bias.detach() * 2)
    return torch.jit.script(made)


def by_file(made: torch.jit.ScriptModule) -> io.BytesIO:
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    return file


def by_buffer(made: torch.jit.ScriptModule) -> io.BytesIO:
    return io.BytesIO(made.save_to_buffer())


@pytest.mark.parametrize("write", [by_file, by_buffer])
@pytest.mark.parametrize("stress", [True, "drop"], ids=["absent", "dropped"])
def test_a_module_is_saved(write: Callable[..., io.BytesIO], stress: bool | str) -> None:
    expected = module().state_dict()
    with torch_lms.managed(limit="64MiB", min_block=1, device="cpu", stress=stress):
        made = module()
        away = {True: "absent", "drop": "dropped"}[stress]
        assert state(made.bias_twice) == away
        file = write(made)
    loaded = torch.jit.load(file).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


@pytest.mark.parametrize("stress", [True, "drop"], ids=["absent", "dropped"])
def test_tensors_are_pickled_in_cpp(stress: bool | str) -> None:
    with torch_lms.managed(limit="64MiB", min_block=1, device="cpu", stress=stress):
        made = torch.ones(64, 64) + 3
        assert state(made) == {True: "absent", "drop": "dropped"}[stress]
        written = torch._C._pickle_save([made])
    assert torch.equal(torch._C._pickle_load_obj(written)[0], torch.full((64, 64), 4.0))


def test_a_module_is_saved_whose_update_waits() -> None:
    def train(steps: int) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.jit.script(torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in "1234"]))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)
        saved = []
        for _ in range(steps):
            model(torch.randn(64, 128)).pow(2).mean().backward()
            optimizer.step()
            if torch_lms.is_enabled("cpu"):
                waited.append(torch_lms.memory_stats("cpu")["deferred.waiting"])
            saved.append(torch.jit.load(by_file(model)).state_dict()["0.weight"])
            optimizer.zero_grad()
        return saved

    waited: list[int] = []
    expected = train(6)
    with torch_lms.managed(
        limit="64MiB", min_block=1, device="cpu", plan="off", deferred_updates="all"
    ):
        found = train(6)
    assert any(waited), "no update waits"
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# Little room: none for what other tests have left.
NO_ROOM = """
import torch, torch_lms

with torch_lms.managed(limit="64KiB", host_limit="48KiB", min_block=1, device="cpu", stress="drop"):
    made = torch.jit.script(torch.nn.Linear(64, 64))
    others = [torch.ones(64, 64) + i for i in range(8)]
    assert torch.ops.lms.state(others[0]) == "dropped"
    try:
        made.save_to_buffer()
    except torch.OutOfMemoryError as error:
        print(error)
    assert all(float(each.sum()) == 64 * 64 * (1 + i) for i, each in enumerate(others))
    print("nothing is lost")
"""


def test_what_cannot_be_computed_again_is_said() -> None:
    harness.lms()
    done = run_script(NO_ROOM)
    assert re.search(r"find no room.*host_limit(.|\n)*nothing is lost", done.stdout), done


def lengths(count: int, value: int) -> torch.Tensor:
    return torch.full((count,), value)


def split() -> list[torch.Tensor]:
    return list(torch.tensor_split(torch.arange(float(N)), torch.arange(0, N, 7) * 1))


def ctc() -> list[torch.Tensor]:
    logits = torch.linspace(0, 1, 10 * N * 4).view(10, N, 4).log_softmax(-1)
    targets = torch.arange(N * 3).view(N, 3) % 3 + 1
    loss = torch.nn.functional.ctc_loss
    return [loss(logits, targets, lengths(N, 10) * 1, lengths(N, 3) * 1)]


def padded() -> list[torch.Tensor]:
    packed = PackedSequence(torch.arange(N * 3.0).view(N, 3), lengths(N, 1) * 1)
    return [pad_packed_sequence(packed)[0]]


@torch.no_grad()
def recurrent(kind: type[torch.nn.RNNBase]) -> list[torch.Tensor]:
    torch.manual_seed(7)
    layer = kind(3, 4)
    packed = PackedSequence(torch.linspace(0, 1, N * 3).view(N, 3), lengths(N, 1) * 1)
    return [layer(packed)[0].data]


@pytest.mark.parametrize(
    "call",
    [split, ctc, padded]
    + [
        pytest.param(lambda kind=kind: recurrent(kind), id=kind.__name__)
        for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)
    ],
)
def test_operators_that_read_lengths_themselves(call: Callable[[], list[torch.Tensor]]) -> None:
    expected = call()
    with torch_lms.managed(limit="64MiB", min_block="4KiB", device="cpu", stress="drop"):
        found = [each * 1 for each in call()]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# Kernels of TorchScript's fuser, which it has on GPUs by default, and on the CPU interprets.
FUSED = """
import sys
import torch, torch_lms

device, how, deterministic = sys.argv[1:]
torch.use_deterministic_algorithms(deterministic == "True")  # results are filled before the launch
rows, wide, limit = (64, (128,), "64MiB") if device == "cpu" else (4096, (4096, 128), "256MiB")
if device == "cpu":
    torch._C._jit_override_can_fuse_on_cpu(True)
    torch._C._jit_set_te_must_use_llvm_cpu(False)

fused = torch.jit.CompilationUnit('''
def fused(x, y, b):
    return (x * y + b).relu() * 2 + b
''').fused

def run(managed):
    b = torch.nn.Parameter(torch.arange(128.0, device=device).expand(wide).clone())
    optimizer = torch.optim.SGD([b], 0.1, momentum=0.9, foreach=True)
    found = []
    for i in range(6):
        b.grad = torch.full(wide, float(i), device=device) * 1
        optimizer.step()
        if managed and how == "waits":
            assert torch_lms.memory_stats(device)["deferred.waiting"], "nothing waits"
        x = torch.linspace(0, 1, rows * 128, device=device).view(rows, 128) + i
        y = torch.full((rows, 128), 2.0, device=device) * 1
        with torch.no_grad():
            found.append(fused(x, y, b))
        if managed and how != "waits":  # nobody has used it
            assert torch.ops.lms.state(found[-1]) != "resident"
    return found

def settings():
    if how == "waits":
        return {"deferred_updates": "all", "plan": "off"}
    return {"stress": {"absent": True, "dropped": "drop"}[how]}

torch_lms.enable(device=device, limit=limit, min_block=1, **settings())
found = run(True)
kinds = str(torch.jit.last_executed_optimized_graph())
assert "prim::TensorExprGroup" in kinds, kinds
torch_lms.disable()
assert all(torch.equal(a, b) for a, b in zip(found, run(False), strict=True))
print("done")
"""


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("how", ["absent", "dropped", "waits"])
@DEVICES
def test_fused_groups_of_torchscript(device: str, how: str, deterministic: bool) -> None:
    harness.lms()
    done = run_script(FUSED, device, how, str(deterministic))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]


# A model with scripted functions is trained under plans, and its weights are looked at.
TRAINED = """
import sys
import torch, torch_lms

device, limit, stress = sys.argv[1:]
width, rows, layers = (32, 32, 2) if device == "cpu" else (64, 65536, 6)  # the former interpreted
torch.use_deterministic_algorithms(True)
if device == "cpu":
    torch._C._jit_override_can_fuse_on_cpu(True)
    torch._C._jit_set_te_must_use_llvm_cpu(False)

act = torch.jit.CompilationUnit('''
def act(x, y, scale):
    y = torch.sigmoid(y) * y + scale
    return x + (y * y + 1).sqrt() * scale
''').act

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return act(x, self.inner(x), self.scale)

def run(steps):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[Layer() for _ in range(layers)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
    batches = [torch.randn(rows, width).to(device) for _ in range(4)]
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batches[step % 4]).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
        if step % 5 == 4:
            losses.append(model[1].scale.detach().norm())
        if step == steps // 2:
            torch_lms.wait_for_plan(device)
    return losses + [each.detach().clone() for each in model.parameters()]

settings = {"stress": "drop"} if stress == "True" else {"recompute": True}
torch_lms.enable(
    device=device, limit=limit, min_block=4096, plan_cache="off", plan_seconds=1, **settings
)
run(4)  # until all is compiled: fused kernels round otherwise than what they are made of
found = run(12)
if device == "cpu":  # GPUs may have gone back to what is not fused
    kinds = str(torch.jit.last_executed_optimized_graph())
    assert "prim::TensorExprGroup" in kinds, kinds[:1500]
stats = torch_lms.memory_stats(device)
torch_lms.disable()
wrong = [i for i, (a, b) in enumerate(zip(found, run(12), strict=True)) if not torch.equal(a, b)]
assert not wrong, wrong
print(stats["plan.steps"] > 0, stats["drops"] > 0, stats)
"""


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize(
    ("device", "limit"),
    [("cpu", "72KiB"), pytest.param("cuda", "352MiB", marks=pytest.mark.gpu)],
)
def test_scripted_functions_are_trained(device: str, limit: str, stress: bool) -> None:
    harness.lms()
    done = run_script(TRAINED, device, limit, str(stress))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("False True" if stress else "True True"), done.stdout


@pytest.mark.parametrize("stress", [True, "drop"])
def test_what_has_been_filled_by_pytorch_alone_stays(stress: bool | str) -> None:
    """Whoever asks for memory, and writes by its address, has done so when it is first used."""
    torch.use_deterministic_algorithms(True)
    try:
        with torch_lms.managed(limit="64MiB", min_block=1024, device="cpu", stress=stress):
            like = torch.empty(64, 64)
            made = [like, torch.empty_strided((64, 64), (1, 64)), like.new_empty(64, 64)]
            made.append(torch.empty_like(like))
            made += [torch.empty(64, 64, dtype=each) for each in (torch.uint32, torch.uint64)]
            assert [state(each) for each in made] == ["resident"] * 6
            values = [float(i) for i in range(4096)]
            assert torch.equal(torch.tensor(values), torch.arange(4096.0))
            assert like.isnan().all()
            assert state(like) != "resident"
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_waits_is_filled_as_by_the_program() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        settings = {"plan": "off", "slices": "chains", "deferred_updates": "all"}
        with torch_lms.managed(limit="1GiB", min_block=4096, device="cpu", **settings):
            x, y = torch.randn(64, 64), torch.randn(64, 64)
            before = torch_lms.memory_stats("cpu")["deferred.in_rows"]
            z = x * y
            assert torch_lms.memory_stats("cpu")["deferred.in_rows"] > before, "z does not wait"
            z.fill_(float("nan"))
            assert z.isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
