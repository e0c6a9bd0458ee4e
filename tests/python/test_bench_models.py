"""The benchmark's models have the sizes that their architectures are known by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench_support import CPU  # noqa: E402

from bench import weights  # noqa: E402
from bench.memory import LiveBytes  # noqa: E402
from bench.models.blocks import parameter_count  # noqa: E402
from bench.models.deeplabv3 import deeplabv3_resnet101  # noqa: E402
from bench.models.googlenet import GoogLeNet  # noqa: E402
from bench.models.llama import Llama, LlamaShape, rotate  # noqa: E402
from bench.models.resize import bilinear, bilinear_by_products  # noqa: E402
from bench.models.resnet import resnet50  # noqa: E402
from bench.models.unet3d import UNet3d, dice_loss  # noqa: E402
from bench.steps import STEPS, StepOptions, build  # noqa: E402
from bench.timing import run_steps  # noqa: E402

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.pinned]

TINY = StepOptions(tiny=True)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (resnet50, 25_557_032),
        (lambda: resnet50(15), 23_538_767),
        (deeplabv3_resnet101, 58_630_997),
        (GoogLeNet, 6_624_904),
        (UNet3d, 8_269_561),
        (Llama, 1_100_048_384),
    ],
    ids=["resnet50", "resnet50-15", "deeplabv3-r101", "googlenet", "unet3d", "llama-1.1b"],
)
def test_parameter_count(make, parameters):
    with torch.device("meta"):
        assert parameter_count(make()) == parameters


def test_resnet_has_torchvisions_names():
    with torch.device("meta"):
        names = set(resnet50().state_dict())
    assert {"conv1.weight", "layer1.0.downsample.1.running_var", "layer4.2.conv3.weight"} <= names
    assert {"bn1.num_batches_tracked", "fc.bias"} <= names
    assert len(names) == 320


@pytest.mark.parametrize("step", sorted(STEPS))
def test_steps_learn_and_start_from_the_same_bits(step):
    first = run_steps(build(step, TINY, CPU), 3, CPU)
    second = run_steps(build(step, TINY, CPU), 1, CPU)
    losses = [float.fromhex(loss) for loss in first.losses]
    assert first.losses[0] == second.losses[0]
    if step == "unet3d_bf16_192":
        # PyTorch's bf16 conv3d on the CPU: in memory too, its gradients differ from run to run, and
        # now and then are not numbers.
        assert torch.isfinite(torch.tensor(losses[0]))
        return
    assert len(set(losses)) == 3
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize("step", sorted(STEPS))
def test_checkpointing_computes_the_same_with_less(step):
    def held_for_backward(on: bool) -> tuple[int, str]:
        train = build(step, TINY, CPU)
        train.set_checkpointing(on)
        loss = run_steps(train, 1, CPU).losses[0]
        with LiveBytes() as live:
            out = train.loss(train.model(train.inputs), train.target)
            held = live.current
        del out
        return held, loss

    (plain, expected), (less, loss) = held_for_backward(False), held_for_backward(True)
    assert loss == expected
    assert less < plain


@pytest.mark.parametrize("optimizer", ["default", "foreach", "forloop"])
def test_updating_in_the_backward_pass_gives_the_bits_of_the_plain_step(optimizer):
    options = StepOptions(tiny=True, optimizer=optimizer)
    plain = build("llama1b_adamw_bf16_4x2048", options, CPU)
    in_backward = build("llama1b_adamw_bf16_4x2048_in_backward", options, CPU)
    assert run_steps(in_backward, 4, CPU).losses == run_steps(plain, 4, CPU).losses
    assert all(map(torch.equal, in_backward.model.parameters(), plain.model.parameters()))
    in_backward.loss(in_backward.model(in_backward.inputs), in_backward.target).backward()
    assert all(weight.grad is None for weight in in_backward.model.parameters())


@pytest.mark.parametrize("size", [(1, 1), (9, 5)])
def test_resizing_by_products_is_bilinear_and_so_is_its_gradient(size):
    x = torch.randn(2, 3, *size, requires_grad=True)
    towards = torch.randn(2, 3, 65, 33)
    results = []
    for resize in (bilinear, bilinear_by_products):
        out = resize(x, (65, 33))
        (gradient,) = torch.autograd.grad((out * towards).sum(), x)
        results.append((out, gradient))
    (out, gradient), (other_out, other_gradient) = results
    assert torch.allclose(other_out, out, atol=1e-5)
    assert torch.allclose(other_gradient, gradient, rtol=1e-5, atol=1e-3)


def test_the_deterministic_variant_computes_the_same_but_for_rounding():
    name = "deeplabv3_r101_bf16_16x513"
    losses = []
    for step in (build(name, TINY, CPU), build(f"{name}_deterministic", TINY, CPU)):
        losses.append(step.loss(step.model(step.inputs), step.target).item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_fingerprint_tells_every_bit_and_nothing_else(monkeypatch):
    def make() -> torch.nn.Module:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5))
        return model.to(torch.bfloat16)

    monkeypatch.setattr(weights, "_CHUNK", 32)  # the weight has 135 elements
    model = make()
    known = {weights.fingerprint(model)}
    assert weights.fingerprint(make().to(memory_format=torch.channels_last)) in known
    with torch.no_grad():
        bits = model[0].weight.view(torch.int16)
        bits[4, 2, 2, 2] ^= 1
        known.add(weights.fingerprint(model))
        bits[0, 0, 0, 0], bits[1, 0, 0, 0] = bits[1, 0, 0, 0].item(), bits[0, 0, 0, 0].item()
        known.add(weights.fingerprint(model))
        model[1].num_batches_tracked += 1
        known.add(weights.fingerprint(model))
        model[1].bias[0] = -0.0
        known.add(weights.fingerprint(model))
    assert len(known) == 5


def test_dice_loss_is_zero_for_a_perfect_answer_and_one_for_none():
    target = torch.zeros(1, 3, 4, 4, 4)
    target[:, :, :2] = 1
    assert dice_loss(target, target) == pytest.approx(0, abs=1e-6)
    assert dice_loss(1 - target, target) == pytest.approx(1, abs=1e-4)


def test_rotary_positions_keep_lengths_and_depend_on_distance_alone():
    model = Llama(LlamaShape(width=64, layers=1, heads=4, hidden=8, vocabulary=8))
    cosine, sine = model._positions(16, CPU)
    q, k = torch.randn(16), torch.randn(16)
    turned_q, turned_k = rotate(q, cosine, sine), rotate(k, cosine, sine)
    assert torch.allclose(turned_q.norm(dim=-1), q.norm().expand(16), atol=1e-5)
    assert torch.allclose(turned_q[0], q)
    products = turned_q @ turned_k.T
    for distance in (0, 1, 5):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)


def test_live_bytes_counts_storages_once_and_forgets_them():
    with LiveBytes() as live:
        a = torch.zeros(1000)
        view = a.view(10, 100)[3:]
        b = view + 1
        assert live.current == 4000 + 2800
        del a, view
        assert live.current == 2800
        del b
    assert live.current == 0
    assert live.peak == 6800
