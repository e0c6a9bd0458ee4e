"""Planned steps that compute again, small enough to run under compute-sanitizer.

    plain=$(python lab/bench/sanitized.py resnet --plain)
    compute-sanitizer --tool memcheck python lab/bench/sanitized.py resnet --than $plain

and ``racecheck --kernel-name kns=lms``, and ``initcheck`` with ``--float32`` in both lines. The
plain run prints its weights' fingerprint and its peak of memory; the other has a part of that,
and its exit status is 0 if steps were planned, computed blocks again, and left the same bits.

The plain run is a process of its own: memory and time are others under a sanitizer, where libraries
take more (``--part``). initcheck sees no write by the tensor memory accelerator, by which products
of 16-bit numbers on Hopper leave their results: plain PyTorch is full of reads that it reports. So
``--float32``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench import weights
from bench.models.llama import Llama, LlamaShape, next_token_loss
from bench.models.resnet import ResNet
from bench.models.unet3d import UNet3d, dice_loss
from bench.steps import package

STEPS, MOST_STEPS = 3, 14
Made = tuple[nn.Module, Callable[[], Tensor]]


def resnet() -> Made:
    """Convolutions, batch norms, SGD."""
    model = ResNet((1, 1, 1, 1), 100, 32).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(24, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(100, (24,)).cuda()
    return model, lambda: functional.cross_entropy(model(images), labels)


def llama() -> Made:
    """Products, attention, a loss over many words."""
    shape = LlamaShape(width=256, layers=4, heads=8, kv_heads=2, hidden=704, vocabulary=4000)
    model = Llama(shape).cuda()
    tokens = torch.randint(4000, (4, 512)).cuda()
    return model, lambda: next_token_loss(model(tokens), tokens)


def unet() -> Made:
    """Convolutions in 3D, instance norms, dropout."""
    model = UNet3d(width=8, depth=4).cuda()
    volume = torch.randn(1, 4, 96, 96, 96).cuda()
    target = torch.randint(2, (1, 3, 96, 96, 96)).float().cuda()
    return model, lambda: dice_loss(model(volume), target)


PROGRAMS = {"resnet": resnet, "llama": llama, "unet": unet}
PARTS = {"resnet": 0.5, "llama": 0.55, "unet": 0.5}  # of the peak: weights of the llama are small


class Training:
    """A run of a program."""

    def __init__(self, name: str, float32: bool) -> None:
        torch.manual_seed(1)
        self._float32 = float32
        self.model, self._loss = PROGRAMS[name]()
        self._update = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._steps = 0
        self.fingerprint = ""

    def step(self) -> None:
        """One step; after a few, what is compared is taken."""
        self._update.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=not self._float32):
            loss = self._loss()
        loss.backward()
        self._update.step()
        self._steps += 1
        if self._steps == STEPS:
            self.fingerprint = weights.fingerprint(self.model)


def set_up(float32: bool) -> None:
    """What makes two runs alike."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # The others' backward passes add up in any order.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if float32:
        torch.backends.cudnn.allow_tf32 = False


def plain_run(name: str, float32: bool) -> tuple[str, int]:
    """The fingerprint of a plain run, and its peak of memory."""
    run = Training(name, float32)
    for _ in range(STEPS):
        run.step()
    return run.fingerprint, torch.cuda.max_memory_allocated()


def main() -> int:
    """Carry out the command line; the program's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--float32", action="store_true", help="without autocast and TF32")
    parser.add_argument("--plain", action="store_true", help="without LMS")
    parser.add_argument("--part", type=float, help="of the peak, as the limit")
    parser.add_argument("--than", nargs=2, metavar=("FINGERPRINT", "PEAK"))
    args = parser.parse_args()
    name = args.program
    set_up(args.float32)
    if args.plain:
        print(*plain_run(name, args.float32))
        return 0
    if args.than is None:
        parser.error("--than is missing: what --plain printed")
    expected, peak = args.than[0], int(args.than[1])
    lms = package()
    limit = int(peak * (args.part or PARTS[name]))
    lms.enable(limit=limit, device="cuda", plan="now", plan_cache="off", plan_seconds=1.0)
    run = Training(name, args.float32)
    for _ in range(MOST_STEPS):
        run.step()
        if lms.memory_stats()["plan.steps"] >= 2:
            break
    torch.cuda.synchronize()
    stats = lms.memory_stats()
    kept = ("plan.steps", "evictions", "page_ins", "drops", "remakes")
    same = run.fingerprint == expected
    did = {key: stats[key] for key in kept}
    print(f"{name}: {peak} bytes, limit {limit}, {did}, same bits: {same}", flush=True)
    if not stats["plan.steps"]:
        print(lms.explain(), {k: v for k, v in stats.items() if k.startswith("plan.") and v})
    return 0 if same and stats["plan.steps"] and stats["remakes"] else 1


if __name__ == "__main__":
    sys.exit(main())
