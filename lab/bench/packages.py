"""Training steps of models that come from other packages: timm and transformers.

Nothing is downloaded: weights and data are random. A step whose package is not installed, or does
not have the model, raises `Missing`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.step import StepOptions, TrainStep, kind


class Missing(RuntimeError):
    """What a step needs is not installed."""


def import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} cannot be imported: {error}") from error


@dataclass
class _LabelledStep(TrainStep):
    """A step of a model that takes its labels too, and computes the loss itself."""

    def forward(self) -> Tensor:
        return self.model(input_ids=self.inputs, labels=self.target).loss


def _adamw(model: torch.nn.Module, options: StepOptions) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **kind(options, "foreach"))


@dataclass(frozen=True)
class _Images:
    """A classifier of timm's, and the images that it is shown."""

    name: str
    batch: int
    side: int = 224
    channels_last: bool = False
    # Arguments of the tiny variant; its images.
    tiny: tuple[tuple[str, Any], ...] = ()
    tiny_side: int = 64

    def __call__(self, options: StepOptions) -> TrainStep:
        timm = import_package("timm")
        if not timm.is_model(self.name):
            raise Missing(f"timm {timm.__version__} has no {self.name}")
        batch, side, extra = self.batch, self.side, {}
        if options.tiny:
            batch, side, extra = 2, self.tiny_side, dict(self.tiny)
        model = timm.create_model(self.name, pretrained=False, **extra)
        inputs = torch.randn(batch, 3, side, side)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return TrainStep(
            model=model,
            optimizer=_adamw(model, options),
            inputs=inputs,
            target=torch.randint(model.num_classes, (batch,)),
            loss=functional.cross_entropy,
            autocast=torch.bfloat16,
        )


@dataclass(frozen=True)
class _Text:
    """A model of transformers', and the tokens that it is shown."""

    model: str
    config: str
    batch: int
    length: int
    sizes: tuple[tuple[str, Any], ...]
    tiny: tuple[tuple[str, Any], ...]

    def __call__(self, options: StepOptions) -> TrainStep:
        transformers = import_package("transformers")
        try:
            make, config = getattr(transformers, self.model), getattr(transformers, self.config)
        except (AttributeError, ImportError) as error:
            raise Missing(f"transformers {transformers.__version__}: {error}") from error
        batch, length = (2, 32) if options.tiny else (self.batch, self.length)
        model = make(config(**dict(self.tiny if options.tiny else self.sizes))).train()
        tokens = torch.randint(model.config.vocab_size, (batch, length))
        classifies = "Classification" in self.model
        target = torch.randint(model.config.num_labels, (batch,)) if classifies else tokens
        return _LabelledStep(
            model=model,
            optimizer=_adamw(model, options),
            inputs=tokens,
            target=target,
            loss=functional.cross_entropy,
            autocast=torch.bfloat16,
        )


STEPS: dict[str, Callable[[StepOptions], TrainStep]] = {
    "efficientnetv2_m_64x288": _Images(
        "tf_efficientnetv2_m", 64, 288, channels_last=True, tiny=(("depth_multiplier", 0.1),)
    ),
    "swin_base_96x224": _Images(
        "swin_base_patch4_window7_224",
        96,
        tiny=(("embed_dim", 16), ("depths", (1, 1, 2, 1)), ("num_heads", (1, 2, 4, 8))),
        tiny_side=224,
    ),
    "bert_large_24x512": _Text(
        "BertForSequenceClassification",
        "BertConfig",
        24,
        512,
        sizes=(
            ("hidden_size", 1024),
            ("num_hidden_layers", 24),
            ("num_attention_heads", 16),
            ("intermediate_size", 4096),
        ),
        tiny=(
            ("vocab_size", 512),
            ("hidden_size", 64),
            ("num_hidden_layers", 2),
            ("num_attention_heads", 4),
            ("intermediate_size", 128),
        ),
    ),
    "gpt2_medium_8x1024": _Text(
        "GPT2LMHeadModel",
        "GPT2Config",
        8,
        1024,
        sizes=(("n_embd", 1024), ("n_layer", 24), ("n_head", 16)),
        tiny=(("vocab_size", 512), ("n_embd", 64), ("n_layer", 2), ("n_head", 4)),
    ),
    "densenet201_128x224": _Images(
        "densenet201", 128, tiny=(("block_config", (1, 2, 2, 1)), ("growth_rate", 8))
    ),
    "convnext_base_96x224": _Images(
        "convnext_base", 96, tiny=(("dims", (8, 16, 32, 64)), ("depths", (1, 1, 2, 1)))
    ),
    "vit_large_64x224": _Images(
        "vit_large_patch16_224",
        64,
        tiny=(("embed_dim", 64), ("depth", 2), ("num_heads", 4)),
        tiny_side=224,
    ),
}
