"""Training programs of several processes, a GPU each: replicas, shards, layers that are split.

Every program starts from the same weights in all ranks; the batches of data parallel ones differ
from rank to rank. Each has its real size and a tiny variant, which runs over gloo on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.models.deeplabv3 import DeepLabV3, deeplabv3_resnet101
from bench.models.llama import Llama, LlamaShape, next_token_loss
from bench.models.resize import bilinear_by_products
from bench.models.resnet import ResNet, resnet50
from bench.packages import Missing
from bench.program import Program, Where
from bench.steps import SEED, pixel_rows_loss

Batches = list[tuple[Tensor, Tensor]]
_BATCHES = 2


@dataclass(frozen=True)
class Ranks:
    """A program, and how it is measured."""

    make: Callable[[Where], Program]
    # Of each of its runs.
    steps: int = 28
    # Whether it runs under LMS, too; else it is there to be compared with.
    managed: bool = True
    # Whether PyTorch refuses kernels that do not repeat, instead of warning: flash attention's
    # backward pass adds in a fixed order only then.
    strict: bool = False


def _pinned(where: Where, tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if where.device.type == "cuda" else tensor


def _generator(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(SEED + rank)


def _images(where: Where, count: int, side: int, classes: int) -> Batches:
    chance = _generator(dist.get_rank())
    batches = []
    for _ in range(_BATCHES):
        images = torch.randn(count, 3, side, side, generator=chance)
        labels = torch.randint(classes, (count,), generator=chance)
        images = images.contiguous(memory_format=torch.channels_last)
        batches.append((_pinned(where, images), _pinned(where, labels)))
    return batches


def _tokens(where: Where, shape: LlamaShape, rank: int, size: tuple[int, int]) -> Batches:
    chance = _generator(rank)
    batches = []
    for _ in range(_BATCHES):
        tokens = torch.randint(shape.vocabulary, size, generator=chance)
        following = torch.full_like(tokens, -100)
        following[:, :-1] = tokens[:, 1:]
        batches.append((_pinned(where, tokens), _pinned(where, following)))
    return batches


def _program(
    where: Where,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    autocast: bool,
) -> Program:
    def step(number: int) -> Tensor:
        given, wanted = (x.to(where.device, non_blocking=True) for x in batches[number % _BATCHES])
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(where.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model(given), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(model, step)


def _replicas(where: Where, model: nn.Module, **options: Any) -> DistributedDataParallel:
    devices = [where.device.index] if where.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, **options)


def _resnet(batch: int, *, synced: bool = False, **options: Any) -> Callable[[Where], Program]:
    """ResNet50 and SGD under DDP. `synced`: batch statistics are those of all ranks."""

    def make(where: Where) -> Program:
        if synced and where.device.type != "cuda":
            raise Missing("SyncBatchNorm needs GPUs")
        with torch.device(where.device):
            model = ResNet((1, 1, 1, 1), 10, 8) if where.tiny else resnet50()
        if synced:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.to(memory_format=torch.channels_last)
        size = (4, 64) if where.tiny else (batch, 224)
        batches = _images(where, *size, model.fc.out_features)
        replica = _replicas(where, model, **options)
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.01, momentum=0.9)
        loss_of = functional.cross_entropy
        return _program(where, replica, optimizer, batches, loss_of, autocast=True)

    return make


def _deeplab(where: Where) -> Program:
    """DeepLabv3 and SGD under DDP, from operators whose kernels repeat."""
    resize = bilinear_by_products
    with torch.device(where.device):
        if where.tiny:
            model, count, side = DeepLabV3((1, 1, 1, 1), 21, 8, 16, resize), 2, 65
        else:
            model, count, side = deeplabv3_resnet101(resize=resize), 16, 513
    model = model.to(memory_format=torch.channels_last)
    chance = _generator(dist.get_rank())
    batches = []
    for images, _ in _images(where, count, side, 21):
        labels = torch.randint(21, (count, side, side), generator=chance)
        batches.append((images, _pinned(where, labels)))
    replica = _replicas(where, model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01, momentum=0.9)
    return _program(where, replica, optimizer, batches, pixel_rows_loss, autocast=True)


def _llama(where: Where, *, rows: int = 2, same_data: bool = False) -> tuple[Llama, Batches]:
    shape, size = LlamaShape(), (rows, 2048)
    if where.tiny:
        shape = LlamaShape(width=64, layers=2, heads=4, kv_heads=2, hidden=128, vocabulary=256)
        size = (4, 64)
    with torch.device(where.device):
        model = Llama(shape)
    return model, _tokens(where, shape, 0 if same_data else dist.get_rank(), size)


def _adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def _llama_ddp(rows: int = 2, **options: Any) -> Callable[[Where], Program]:
    def make(where: Where) -> Program:
        model, batches = _llama(where, rows=rows)
        replica = _replicas(where, model, **options)
        optimizer = _adamw(replica.parameters())
        return _program(where, replica, optimizer, batches, next_token_loss, autocast=True)

    return make


def _llama_fsdp(*, checkpoints: bool = False, offloads: bool = False) -> Callable[[Where], Program]:
    """FSDP2: every layer's weights are gathered in bfloat16, gradients reduced in float32."""

    def make(where: Where) -> Program:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        if offloads and where.device.type != "cuda":
            raise Missing("CPUOffloadPolicy needs GPUs")
        model, batches = _llama(where)
        given: dict[str, Any] = {
            "mesh": dist.init_device_mesh(where.device.type, (dist.get_world_size(),)),
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            ),
        }
        if offloads:
            given["offload_policy"] = CPUOffloadPolicy()
        for at, layer in enumerate(model.layers):
            model.layers[at] = checkpoint_wrapper(layer) if checkpoints else layer
            fully_shard(model.layers[at], **given)
        fully_shard(model, **given)
        optimizer = _adamw(model.parameters())
        return _program(where, model, optimizer, batches, next_token_loss, autocast=False)

    return make


def _llama_split(where: Where) -> Program:
    """Tensor parallel: heads and hidden channels are spread, all ranks see the same data."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model, batches = _llama(where, same_data=True)
    mesh = dist.init_device_mesh(where.device.type, (dist.get_world_size(),))
    # In the same order in all ranks, which spread the weights one by one.
    into = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj")
    styles: dict[str, Any] = {name: ColwiseParallel() for name in (*into, "mlp.up_proj")}
    styles |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    for layer in model.layers:
        parallelize_module(layer, mesh, styles)
    # An update goes through tensors of one kind.
    split = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    optimizer = _adamw([{"params": split}, {"params": whole}])
    return _program(where, model, optimizer, batches, next_token_loss, autocast=True)


PROGRAMS: dict[str, Ranks] = {
    "resnet50_ddp": Ranks(_resnet(128), steps=40),
    "llama_fsdp": Ranks(_llama_fsdp(), strict=True),
    "llama_ddp": Ranks(_llama_ddp(), strict=True),
    "llama_ddp_4x2048": Ranks(_llama_ddp(4, gradient_as_bucket_view=True), strict=True),
    "deeplabv3_ddp": Ranks(_deeplab),
    "resnet50_ddp_views": Ranks(_resnet(128, gradient_as_bucket_view=True), steps=40),
    "llama_fsdp_checkpoints": Ranks(_llama_fsdp(checkpoints=True), strict=True),
    "llama_fsdp_offloads": Ranks(_llama_fsdp(offloads=True), steps=6, managed=False),
    "resnet50_ddp_synced": Ranks(_resnet(32, synced=True), steps=32),
    "llama_split": Ranks(_llama_split, strict=True),
}
