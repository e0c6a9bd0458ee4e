"""What operators in slices take, against the same operators on the device as a whole.

    python lab/bench/slices.py --out slices.json           # a GPU
    python lab/bench/slices.py --device cpu --mib 8        # a try

Each operator runs on tensors of ``--mib`` MiB under a limit below what it touches, in slices, and
under no limit as a whole: the same bits, the times of both, and the rate at which bytes came and
went.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

import torch_lms  # noqa: E402

MIB = 1 << 20
Run = Callable[[Tensor, Tensor], Tensor]
# With the limit, in sizes of an operand.
RUNS: dict[str, tuple[float, Run]] = {
    "gelu": (1.75, lambda x, _: torch.nn.functional.gelu(x)),
    "add": (2, lambda x, y: x + y),
    "log_softmax": (1.75, lambda x, _: torch.log_softmax(x, 1)),
    "log_softmax_backward": (
        2,
        lambda x, y: torch._log_softmax_backward_data(x, y, 1, x.dtype),
    ),
    "max_pool2d": (
        1.125,
        lambda x, _: torch.nn.functional.max_pool2d(x.view(1, 16, -1, x.shape[1]), 2),
    ),
    "cast": (1.125, lambda x, _: x.half()),
    "cat": (2, lambda x, y: torch.cat([x[: len(x) // 2], y])),
}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(run: Run, x: Tensor, y: Tensor, device: str) -> tuple[float, Tensor]:
    """The least of three runs in milliseconds, and the result."""
    times = []
    for _ in range(3):
        result = None
        wait(device)
        start = time.perf_counter()
        result = run(x, y)
        wait(device)
        times.append((time.perf_counter() - start) * 1e3)
    assert result is not None
    return min(times), result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    width = 32000 if args.mib >= 256 else 1024
    rows = args.mib * MIB // 4 // width // 32 * 32
    host = [torch.rand(rows, width, generator=torch.Generator().manual_seed(k)) for k in (1, 2)]
    found = {}
    wrong = 0
    for name, (part, run) in RUNS.items():
        x, y = (tensor.to(args.device, copy=True) for tensor in host)
        whole_ms, result = timed(run, x, y, args.device)
        expected = result.cpu()
        del x, y, result
        if args.device == "cuda":
            torch.cuda.empty_cache()
        limit = int(part * args.mib * MIB)
        with torch_lms.managed(limit=limit, device=args.device, plan="off"):
            x, y = (tensor.to(args.device, copy=True) for tensor in host)
            before = torch_lms.memory_stats(args.device)
            sliced_ms, result = timed(run, x, y, args.device)
            after = torch_lms.memory_stats(args.device)
            same = bool((result.cpu().view(torch.uint8) == expected.view(torch.uint8)).all())
            operators = after["slices.operators"] - before["slices.operators"]
            moved = (after["slices.bytes"] - before["slices.bytes"]) / max(operators, 1)
            del x, y, result
        wrong += not same
        found[name] = {
            "whole_ms": round(whole_ms, 3),
            "sliced_ms": round(sliced_ms, 3),
            "operators_in_slices": operators,
            "gb_moved": round(moved / 1e9, 3),
            "gb_s": round(moved / 1e6 / sliced_ms, 1),
            "same_bits": same,
        }
        print(f"{name:24s} {found[name]}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"mib": args.mib, "operators": found}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
