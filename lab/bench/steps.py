"""The training steps that are measured: model, data, optimizer and precision of each.

Each step has its real size and a tiny variant with the same operators, for machines without a GPU.
Everything random (weights, data, dropout) follows from one seed, so that two runs on one machine
start from the same bits and see the same batch in every step.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import packages
from bench.models.deeplabv3 import DeepLabV3, Resize, deeplabv3_resnet101
from bench.models.googlenet import GoogLeNet
from bench.models.llama import Llama, LlamaShape, next_token_loss
from bench.models.resize import bilinear, bilinear_by_products
from bench.models.resnet import ResNet, resnet50
from bench.models.smallnet import SmallNet
from bench.models.unet3d import UNet3d, dice_loss
from bench.step import Loop, StepOptions, TrainStep, kind

SEED = 20260101


def package() -> ModuleType:
    """The package under test: as installed, else from this checkout."""
    try:
        return importlib.import_module("torch_lms")
    except ModuleNotFoundError as error:
        if error.name != "torch_lms":
            raise
        sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))
        return importlib.import_module("torch_lms")


def _sgd(model: nn.Module, options: StepOptions) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **kind(options, "foreach"))


def _images(batch: int, side: int, *, channels_last: bool) -> Tensor:
    images = torch.randn(batch, 3, side, side)
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


def _classifier(
    model: nn.Module, options: StepOptions, batch: int, side: int, autocast: torch.dtype | None
) -> TrainStep:
    channels_last = autocast is not None
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    classes = model.fc.out_features
    return TrainStep(
        model=model,
        optimizer=_sgd(model, options),
        inputs=_images(batch, side, channels_last=channels_last),
        target=torch.randint(classes, (batch,)),
        loss=functional.cross_entropy,
        autocast=autocast,
    )


def _resnet50_bf16(options: StepOptions) -> TrainStep:
    if options.tiny:
        return _classifier(ResNet((1, 1, 1, 1), 10, 8), options, 4, 64, torch.bfloat16)
    return _classifier(resnet50(), options, 256, 224, torch.bfloat16)


def _resnet50_tf32(options: StepOptions) -> TrainStep:
    if options.tiny:
        return _classifier(ResNet((1, 1, 1, 1), 10, 8), options, 2, 96, None)
    return _classifier(resnet50(), options, 4, 2000, None)


def _googlenet(options: StepOptions) -> TrainStep:
    if options.tiny:
        return _classifier(GoogLeNet(10, shrink=8), options, 2, 64, torch.bfloat16)
    return _classifier(GoogLeNet(), options, 15, 1120, torch.bfloat16)


def _deeplabv3(options: StepOptions, resize: Resize = bilinear) -> TrainStep:
    if options.tiny:
        model, batch, side = DeepLabV3((1, 1, 1, 1), 21, 8, 16, resize), 2, 65
    else:
        model, batch, side = deeplabv3_resnet101(resize=resize), 16, 513
    model = model.to(memory_format=torch.channels_last)
    return TrainStep(
        model=model,
        optimizer=_sgd(model, options),
        inputs=_images(batch, side, channels_last=True),
        target=torch.randint(21, (batch, side, side)),
        loss=functional.cross_entropy,
        autocast=torch.bfloat16,
    )


def pixel_rows_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of N x C x H x W scores. PyTorch's kernel for images adds up in the order
    in which its threads come, on a GPU; that for rows does not."""
    return functional.cross_entropy(scores.permute(0, 2, 3, 1).flatten(0, 2), target.flatten())


def _deeplabv3_deterministic(options: StepOptions) -> TrainStep:
    """The same step from operators whose kernels repeat bit by bit on a GPU."""
    step = _deeplabv3(options, bilinear_by_products)
    step.loss = pixel_rows_loss
    return step


def _unet3d(options: StepOptions) -> TrainStep:
    model = UNet3d(width=4, depth=4) if options.tiny else UNet3d()
    side = 16 if options.tiny else 192
    inputs = torch.randn(1, 4, side, side, side)
    # Labels that can be learnt: a threshold of each of the first three modalities.
    return TrainStep(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-4, **kind(options, "foreach")),
        inputs=inputs,
        target=(inputs[:, :3] > 0.5).float(),
        loss=dice_loss,
        autocast=torch.bfloat16,
    )


def _llama(options: StepOptions) -> TrainStep:
    if options.tiny:
        shape = LlamaShape(width=64, layers=2, heads=4, kv_heads=2, hidden=128, vocabulary=256)
        batch, length = 2, 32
    else:
        shape, batch, length = LlamaShape(), 4, 2048
    model = Llama(shape)
    tokens = torch.randint(shape.vocabulary, (batch, length))
    following = torch.full_like(tokens, -100)
    following[:, :-1] = tokens[:, 1:]
    return TrainStep(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, **kind(options, "fused")),
        inputs=tokens,
        target=following,
        loss=next_token_loss,
        autocast=torch.bfloat16,
    )


def _llama_in_backward(options: StepOptions) -> TrainStep:
    """Each weight is updated in the backward pass, as soon as its gradient is final."""
    step = _llama(options)
    package().step_in_backward(step.optimizer)
    return step


def _small(options: StepOptions, batch: int, side: int) -> TrainStep:
    model = SmallNet(10, width=8, depth=2) if options.tiny else SmallNet()
    return _classifier(model, options, batch, side, torch.bfloat16)


def _loop_shapes(options: StepOptions) -> TrainStep:
    """Five iterations with one size of images and batch, five with another, and so on."""
    every = 5
    sizes = ((4, 48), (6, 40)) if options.tiny else ((128, 224), (160, 192))
    step = _small(options, *sizes[0])
    batch, side = sizes[1]
    images = _images(batch, side, channels_last=True)
    classes = torch.randint(step.model.fc.out_features, (batch,))
    batches = ((step.inputs, step.target), (images, classes))

    def vary(changed: TrainStep, iteration: int) -> None:
        changed.inputs, changed.target = batches[iteration // every % 2]

    step.loop = Loop(vary, cycle=2 * every, warmup=30, steps=30)
    return step


def takes_branch(iteration: int) -> bool:
    """A coin for each iteration of `loop_branch`, the same in every run."""
    return random.Random(SEED + iteration).random() < 0.5


def _loop_branch(options: StepOptions) -> TrainStep:
    """Every second iteration on average runs a block of layers that the others leave out."""
    step = _small(options, *((4, 48) if options.tiny else (128, 224)))

    def vary(changed: TrainStep, iteration: int) -> None:
        changed.model.use_extra = takes_branch(iteration)

    step.loop = Loop(vary, cycle=10, warmup=30, steps=30)
    return step


STEPS: dict[str, Callable[[StepOptions], TrainStep]] = {
    "resnet50_bf16_256x224": _resnet50_bf16,
    "resnet50_tf32_4x2000": _resnet50_tf32,
    "deeplabv3_r101_bf16_16x513": _deeplabv3,
    "deeplabv3_r101_bf16_16x513_deterministic": _deeplabv3_deterministic,
    "googlenet_bf16_15x1120": _googlenet,
    "unet3d_bf16_192": _unet3d,
    "llama1b_adamw_bf16_4x2048": _llama,
    "llama1b_adamw_bf16_4x2048_in_backward": _llama_in_backward,
    "loop_shapes": _loop_shapes,
    "loop_branch": _loop_branch,
}


def is_of_a_package(step: str) -> bool:
    """Whether the step's model is another package's: it runs as its users run it."""
    return step in packages.STEPS


def attention_of(step: str, options: StepOptions) -> str | None:
    """The attention kernel that is chosen for this step; None: PyTorch's choice, of a package's."""
    return options.attention or (None if is_of_a_package(step) else "flash")


def configure(step: str, options: StepOptions) -> None:
    """Set the process-wide switches that this step runs under: kernels, precision, determinism."""
    if not is_of_a_package(step):
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = options.deterministic
        tf32 = "tf32" in step
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    attention = attention_of(step, options)
    has_some = step.startswith("llama") or is_of_a_package(step)
    if attention is None or not has_some:
        return
    torch.backends.cuda.enable_cudnn_sdp(attention == "cudnn")
    torch.backends.cuda.enable_flash_sdp(attention == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(attention == "efficient")
    torch.backends.cuda.enable_math_sdp(attention == "math")
    # The flash kernel's backward pass adds in a fixed order only under this switch, and PyTorch
    # has no such switch for cuDNN's.
    fixed_order = options.deterministic and attention == "flash"
    torch.use_deterministic_algorithms(fixed_order)
    torch.utils.deterministic.fill_uninitialized_memory = False


def build(step: str, options: StepOptions, device: torch.device) -> TrainStep:
    """A fresh training step on `device`, always from the same seed."""
    torch.manual_seed(SEED)
    with torch.device(device):
        built = (STEPS | packages.STEPS)[step](options)
    if options.clip:
        built.clip = 1.0
    return built
