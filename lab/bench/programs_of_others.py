"""Training programs of models that come from other packages, as their users write them.

Nothing is downloaded: weights and data are random. A program whose package is not installed, or
does not have the model, raises `Missing`. Each has its real size, a few GiB at its peak, and a tiny
variant for machines without a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import programs_of_loops as loops
from bench import programs_written_out as written
from bench.packages import Missing, import_package
from bench.program import (
    SEED,
    TINY_BERT,
    TINY_GPT2,
    Program,
    Where,
    adamw,
    one_update,
    sgd,
    transformers,
)


def _timm(
    name: str,
    batch: int,
    side: int = 224,
    *,
    channels_last: bool = False,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    tiny_side: int = 64,
    **tiny: Any,
) -> Callable[[Where], Program]:
    """A classifier of timm's, under autocast."""

    def make(where: Where) -> Program:
        timm = import_package("timm")
        if not timm.is_model(name):
            raise Missing(f"timm {timm.__version__} has no {name}")
        model = timm.create_model(name, pretrained=False, **(tiny if where.tiny else {}))
        count, size = (2, tiny_side) if where.tiny else (batch, side)
        images = torch.randn(count, 3, size, size)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(model.num_classes, (count,)).to(where.device)
        model, images = model.to(where.device).train(), images.to(where.device)
        update = optimizer(model)

        def step(_: int) -> Tensor:
            return one_update(
                where, update, lambda: functional.cross_entropy(model(images), labels)
            )

        return Program(model, step)

    return make


def _text(
    model: str,
    config: str,
    batch: int,
    length: int,
    sizes: dict[str, Any],
    tiny: dict[str, Any],
    *,
    clip: bool = False,
    decodes: bool = False,
    lengths: Sequence[int] = (),
    accumulate: int = 1,
) -> Callable[[Where], Program]:
    """A language model of transformers' that computes its loss itself. `lengths`: those of the
    batches, drawn at random."""
    build = transformers(model, config, sizes, tiny)

    def make(where: Where) -> Program:
        network = build(where)
        words = network.config.vocab_size
        update = adamw(network)
        chance = random.Random(SEED)

        def step(_: int) -> Tensor:
            update.zero_grad()
            total = torch.zeros((), device=where.device)
            for _ in range(accumulate):
                size = (2, 32) if where.tiny else (batch, length)
                if lengths:
                    drawn = chance.choice(lengths)
                    size = (size[0], drawn // 16 if where.tiny else drawn)
                tokens = torch.randint(words, size).to(where.device)
                given = {"input_ids": tokens, "labels": tokens}
                if decodes:
                    given["labels"] = tokens[:, : size[1] // 4].contiguous()
                with where.autocast():
                    loss = network(**given).loss / accumulate
                loss.backward()
                total += loss.detach()
            if clip:
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            update.step()
            return total

        return Program(network, step)

    return make


_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256}
_T5_ALL = {"decoder_start_token_id": 0}
_MIXTRAL = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8}
_MIXTRAL |= {"num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 8}
_MIXTRAL |= {"vocab_size": 32000, "experts_implementation": "eager"}
_ANY_LENGTH = range(64, 1025)

PROGRAMS: dict[str, Callable[[Where], Program]] = {
    "resnet50": _timm("resnet50", 96, channels_last=True, optimizer=sgd, block_args=None),
    "efficientnet_b3": _timm("efficientnet_b3", 48, 300, channels_last=True),
    "mobilenetv3": _timm("mobilenetv3_large_100", 192, optimizer=sgd),
    "regnety": _timm("regnety_016", 96, channels_last=True),
    "convnext": _timm("convnext_tiny", 64, dims=(8, 16, 32, 64), depths=(1, 1, 2, 1)),
    "swin": _timm(
        "swin_tiny_patch4_window7_224",
        64,
        tiny_side=224,
        embed_dim=16,
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
    ),
    "deit": _timm("deit3_base_patch16_224", 64, tiny_side=224, depth=2),
    "mixer": _timm("mixer_b16_224", 64, tiny_side=224),
    "densenet": _timm("densenet121", 64, growth_rate=8),
    "maxvit": _timm("maxvit_tiny_tf_224", 32, tiny_side=224),
    "gpt2": _text("GPT2LMHeadModel", "GPT2Config", 8, 1024, {}, TINY_GPT2, clip=True),
    "gpt2_lengths": _text(
        "GPT2LMHeadModel",
        "GPT2Config",
        8,
        1024,
        {},
        TINY_GPT2,
        lengths=(128, 256, 384, 512, 640, 768, 896, 1024),
    ),
    "bert": _text("BertForMaskedLM", "BertConfig", 24, 512, {}, TINY_BERT, accumulate=2),
    "t5": _text("T5ForConditionalGeneration", "T5Config", 32, 512, _T5_ALL, _T5, decodes=True),
    "qwen": _text(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        4,
        1024,
        {
            "hidden_size": 896,
            "num_hidden_layers": 12,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
        },
        TINY_BERT | {"num_key_value_heads": 2},
        clip=True,
    ),
    "mixtral": _text(
        "MixtralForCausalLM",
        "MixtralConfig",
        8,
        512,
        _MIXTRAL,
        TINY_BERT | {"num_key_value_heads": 2, "num_local_experts": 4},
    ),
    "lora": written.fine_tuned,
    "whisper": written.speech,
    "fcn": written.torchvision_segmentation,
    "r3d": written.torchvision_video,
    "faster_rcnn": written.torchvision_detection("fasterrcnn_resnet50_fpn", 4),
    "mask_rcnn": written.torchvision_detection("maskrcnn_resnet50_fpn", 4),
    "graphsage": written.graph,
    "lstm": written.recurrent,
    "dcgan": written.adversarial,
    "diffusion": written.diffusion,
    "lbfgs": written.quasi_newton,
    "bert_any_length": _text(
        "BertForMaskedLM",
        "BertConfig",
        16,
        1024,
        {"max_position_embeddings": 1024},
        TINY_BERT,
        lengths=_ANY_LENGTH,
    ),
    "gpt2_any_length": _text(
        "GPT2LMHeadModel", "GPT2Config", 8, 1024, {}, TINY_GPT2, lengths=_ANY_LENGTH
    ),
    "random_depth": loops.random_depth,
    "sample_then_train": loops.sample_then_train,
    "turns_of_two": loops.turns_of_two,
    "accumulated": loops.accumulated,
}

# Those whose steps differ.
LOOPS = (
    "mask_rcnn",
    "faster_rcnn",
    "mixtral",
    "bert_any_length",
    "gpt2_any_length",
    "random_depth",
    "sample_then_train",
    "turns_of_two",
    "accumulated",
)
