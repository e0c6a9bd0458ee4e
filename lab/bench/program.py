"""What a training program of the benchmarks is, and what such programs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.packages import Missing, import_package

SEED = 20260101
Steps = Callable[[int], Tensor]


@dataclass
class Program:
    """A model with everything that its training needs."""

    modules: nn.Module
    # Runs the iteration of this number and returns its loss, on the device.
    step: Steps


@dataclass(frozen=True)
class Where:
    """What a program is made for."""

    device: torch.device
    tiny: bool

    def autocast(self, dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=dtype)


# Sizes of the tiny variants.
TINY_BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY_BERT |= {"intermediate_size": 128, "vocab_size": 256}
TINY_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}
TINY_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}


def one_update(
    where: Where, update: torch.optim.Optimizer, loss_of: Callable[[], Tensor]
) -> Tensor:
    """An iteration of one batch: its loss, under autocast, and the update that follows from it."""
    update.zero_grad()
    with where.autocast():
        loss = loss_of()
    loss.backward()
    update.step()
    return loss.detach()


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def transformers(model: str, config: str, sizes: dict[str, Any], tiny: dict[str, Any]) -> Any:
    """A function that makes the model."""

    def make(where: Where) -> nn.Module:
        package = import_package("transformers")
        try:
            kind, shape = getattr(package, model), getattr(package, config)
        except (AttributeError, ImportError) as error:
            raise Missing(f"transformers {package.__version__}: {error}") from error
        made = kind(shape(**(sizes | tiny if where.tiny else sizes)))
        return made.to(where.device).train()

    return make
