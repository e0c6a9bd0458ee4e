"""One rank of training programs for several processes, plainly and under LMS, bit by bit.

    torchrun --nproc-per-node 2 ranks_program.py FOLDER all      or another name of PROGRAMS
    torchrun --nproc-per-node 2 ranks_program.py FOLDER planned  more steps, under plans alone
    torchrun --nproc-per-node 2 ranks_program.py FOLDER short    one rank's limit is too small
    torchrun --nproc-per-node 2 ranks_program.py FOLDER dies     one rank is killed

Each program trains a few steps and returns tensors; the rank prints a line a program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48
ROWS = 512
STEPS, PLANNED_STEPS = 5, 16
FOLDER = Path(sys.argv[1] if len(sys.argv) > 2 else ".")

Result = list[torch.Tensor]


def layers() -> list[nn.Module]:
    torch.manual_seed(1)
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(4)
    ]


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(ROWS, WIDTH, generator=generator) * 1


def local(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return whole.detach().clone()


def train(
    model: nn.Module,
    steps: int = 0,
    accumulate: int = 1,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    optimizer: torch.optim.Optimizer | None = None,
) -> Result:
    """``steps``: 0 is as many as all programs run. ``accumulate``: all but the last of so many
    passes are ``around`` which does not average."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps or STEPS):
        for part in range(accumulate):
            x = batch(step * accumulate + part)
            with contextlib.nullcontext() if part + 1 == accumulate else around():
                loss = (model(torch.sin(x)) - x).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(local(p) for p in model.parameters())]


def replicas(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(nn.Sequential(*layers()), bucket_cap_mb=0.02, **options)


def ddp() -> Result:
    return train(replicas())


def ddp_bucket_views() -> Result:
    return train(replicas(gradient_as_bucket_view=True))


def ddp_static_graph() -> Result:
    return train(replicas(static_graph=True))


def ddp_accumulates() -> Result:
    model = replicas()
    return train(model, steps=4, accumulate=3, around=model.no_sync)


def ddp_communication_hook() -> Result:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = replicas(gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return train(model)


def ddp_uneven_inputs() -> Result:
    model = replicas()
    with model.join():
        return train(model, steps=3 + dist.get_rank())


def ddp_unused_parameters() -> Result:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(layers())
            self.turn = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.turn += 1
            return self.parts[2](self.parts[self.turn % 2](x))

    model = DistributedDataParallel(Either(), find_unused_parameters=True)
    return train(model)


def ddp_sharded_optimizer() -> Result:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = replicas()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2
    )
    return train(model, optimizer=optimizer)


def sharded(checkpoint: bool = False, **options: Any) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard

    parts = layers()
    if checkpoint:
        parts = [checkpoint_wrapper(part) for part in parts]
    model = nn.Sequential(*parts)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in parts:
        fully_shard(part, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp() -> Result:
    return train(sharded())


def fsdp_keeps_weights() -> Result:
    return train(sharded(reshard_after_forward=False))


def fsdp_bf16() -> Result:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(sharded(mp_policy=policy))


def fsdp_checkpoints() -> Result:
    return train(sharded(checkpoint=True))


def fsdp_accumulates() -> Result:
    model = sharded()

    @contextlib.contextmanager
    def without_sync() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return train(model, steps=3, accumulate=3, around=without_sync)


def fsdp_saves_and_loads() -> Result:
    """A checkpoint is written and read while weights and states are away."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, steps=3, optimizer=optimizer)
    away()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"weights": weights, "states": states}, checkpoint_id=FOLDER / "checkpoint")
    train(model, steps=2, optimizer=optimizer)
    away()
    weights, states = get_state_dict(model, optimizer)
    kept = {"weights": weights, "states": states}
    dcp.load(kept, checkpoint_id=FOLDER / "checkpoint")
    set_state_dict(
        model, optimizer, model_state_dict=kept["weights"], optim_state_dict=kept["states"]
    )
    return train(model, steps=3, optimizer=optimizer)


def tensor_parallel() -> Result:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model)


def collectives() -> Result:
    """Called directly, at once and asynchronously, on tensors that come and go."""
    size, rank = dist.get_world_size(), dist.get_rank()
    results = []
    for turn in range(4):
        x = batch(turn) * 1
        y = torch.sin(x)
        work = dist.all_reduce(y, async_op=True)
        z = torch.cos(x)
        away()
        work.wait()
        gathered = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(gathered, z)
        rows = torch.cat(gathered) * 1
        part = torch.empty(ROWS, WIDTH)
        dist.reduce_scatter_tensor(part, rows)
        dist.broadcast(z, src=turn % size)
        if rank == 0:
            dist.send(part, dst=1)
        elif rank == 1:
            dist.recv(part, src=0)
        results += [y * 1, part * 1, z * 1]
    return results


_ALL: list[Callable[[], Result]] = [
    ddp,
    ddp_bucket_views,
    ddp_static_graph,
    ddp_accumulates,
    ddp_communication_hook,
    ddp_uneven_inputs,
    ddp_unused_parameters,
    ddp_sharded_optimizer,
    fsdp,
    fsdp_keeps_weights,
    fsdp_bf16,
    fsdp_checkpoints,
    fsdp_accumulates,
    fsdp_saves_and_loads,
    tensor_parallel,
    collectives,
]


PROGRAMS = {
    "all": _ALL,
    # What differs between more ranks than two, and where updates wait.
    "more": [ddp, ddp_uneven_inputs, fsdp, tensor_parallel, collectives],
    # Not FSDP: who lets go of a gathered buffer last, gloo's thread or the program's, is chance,
    # and when is part of a step. (test_traps_sharded.py has it on the model of CUDA.)
    "planned": [ddp, ddp_bucket_views, ddp_static_graph, tensor_parallel],
    "updates": [ddp, ddp_accumulates, ddp_sharded_optimizer, fsdp, fsdp_saves_and_loads],
}


managed = False


def away() -> None:
    """Everything that may leave leaves."""
    if managed:
        import torch_lms

        torch_lms.reclaim_inactive("cpu")


def settings(what: str, program: Callable[[], Result]) -> dict[str, Any]:
    if what == "plan":
        # Ranks differ: each plans for itself.
        limit = (3072 if program is collectives else 1024) + 128 * dist.get_rank()
        return {"limit": f"{limit}KiB", "plan": "now", "plan_cache": "off", "recompute": True}
    return {"stress": True if what == "evict" else what}


COUNTS = {"evict": "evictions", "drop": "drops", "plan": "evictions"}
# Where enough steps run to follow a plan.
PLANNED = {"plan": "plan.steps"}


def under(what: str, program: Callable[[], Result]) -> tuple[Result, dict[str, int]]:
    import torch_lms

    global managed
    torch_lms.enable(device="cpu", min_block="8KiB", **settings(what, program))
    managed = True
    try:
        results = program()
        return results, torch_lms.memory_stats("cpu")
    finally:
        managed = False
        torch_lms.disable()


def compare(programs: list[Callable[[], Result]], counts: dict[str, str]) -> None:
    for program in programs:
        expected = program()
        for what, count in counts.items():
            got, stats = under(what, program)
            same = len(got) == len(expected) and all(
                torch.equal(a, b) for a, b in zip(got, expected, strict=True)
            )
            line = (
                f"rank {dist.get_rank()} {program.__name__} {what}: "
                f"{'same' if same else 'DIFFERENT'}, {count} {stats[count] > 0}\n"
            )
            os.write(1, line.encode())  # at once: ranks share the pipe
            dist.barrier()


def out_of_memory() -> None:
    """The second rank's limit holds nothing that it needs."""
    import torch_lms

    torch_lms.enable(
        device="cpu", min_block="8KiB", limit="64KiB" if dist.get_rank() == 1 else "4MiB"
    )
    train(replicas(), steps=100_000)


def one_dies() -> None:
    """The second rank is killed between two operators of a step; the others wait for it."""
    import torch_lms

    torch_lms.enable(device="cpu", min_block="8KiB", limit="1MiB")
    train(replicas())
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(replicas(), steps=100_000)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    what = sys.argv[2]
    if what == "planned":
        global STEPS
        STEPS = PLANNED_STEPS
    if what in PROGRAMS:
        compare(PROGRAMS[what], PLANNED if what == "planned" else COUNTS)
    else:
        {"short": out_of_memory, "dies": one_dies}[what]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
