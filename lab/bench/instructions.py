"""What LMS costs the host, in instructions per operator, without a GPU.

A training step of encoder layers runs on the model of the CUDA runtime (``tests/model_cuda``), on
which kernels and copies cost nothing, under ``valgrind --tool=callgrind``: what is counted is the
host's work alone, the same on a busy machine as on an idle one. Instructions are not time, of which
code and data that have left the caches take more: so the same steps are timed as well, without
valgrind. Modes: plain PyTorch; LMS, and everything fits; LMS, planned at half of the memory;
likewise, never planned.

    cmake --build build --target lms_torch lms_model_cuda
    python lab/bench/instructions.py --label "after" --out lab/results/host-instructions.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records

MODES = ("plain", "fits", "planned", "reactive")
#: Steps that are counted, and before that at most.
STEPS = 2
WARM_UP = 40
#: Steps that are timed.
TIMED = 200
#: Steps under a plan before any is counted.
SETTLED = 6
LAYERS, WIDTH, HEADS, BATCH, LENGTH = 4, 512, 8, 4, 512
#: Bytes that the plain step needs at most, and what of the model's device is a lot.
PEAK = 705_754_112
ROOMY = 850 << 20


def make_step(torch):  # noqa: ANN001, ANN201
    """A step of mixed precision, with dropout and AdamW, of an encoder as BERT has it."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.norm, self.last_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.drop = nn.Dropout(0.1)

        def heads(self, x):  # noqa: ANN001, ANN202
            return x.view(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)

        def forward(self, x):  # noqa: ANN001, ANN202
            q, k, v = (self.heads(part(x)) for part in (self.query, self.key, self.value))
            weights = self.drop(torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1))
            mixed = (weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
            x = self.norm(x + self.drop(self.out(mixed)))
            return self.last_norm(x + self.drop(self.narrow(functional.gelu(self.wide(x)))))

    model = nn.Sequential(
        nn.Linear(64, WIDTH), *(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 1)
    )
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.empty(BATCH, LENGTH, 64, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def work(mode: str, timed: bool) -> None:
    """One mode, in a process of its own: prints what the counted steps did (under valgrind), or how
    long steps took."""
    import torch

    import torch_lms

    library = ctypes.CDLL(None)
    library.model_cuda_calls.restype = ctypes.c_longlong
    if mode != "plain":
        limit = ROOMY if mode == "fits" else PEAK // 2
        plan = {"planned": "now", "reactive": "off"}.get(mode, "on")
        torch_lms.enable(device="cuda", limit=limit, host_limit="4GiB", plan=plan)
    torch.autograd.set_multithreading_enabled(False)
    step = make_step(torch)
    for _ in range({"planned": WARM_UP, "reactive": 12}.get(mode, 4)):
        step()
        torch.cuda.synchronize()
        if mode == "planned" and torch_lms.memory_stats("cuda")["plan.steps"] >= SETTLED:
            break

    def figures() -> dict[str, int]:
        names = ("operators", "evictions", "page_ins", "drops", "remakes", "plan.steps")
        stats = {} if mode == "plain" else torch_lms.memory_stats("cuda")
        return {name: stats.get(name, 0) for name in names} | {"events": library.model_cuda_calls()}

    if timed:
        times = []
        for _ in range(TIMED):
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps({"least_ms": min(times), "median_ms": statistics.median(times)}))
        return
    before = figures()
    library.model_cuda_count(1)
    for _ in range(STEPS):
        step()
    library.model_cuda_count(0)
    after = figures()
    print(json.dumps({name: (after[name] - before[name]) / STEPS for name in after}))


def run(mode: str, model: Path, *, under: list[str], arguments: list[str]) -> tuple[dict, str]:
    """What a worker prints, and what the program prints that it runs under."""
    command = [*under, sys.executable, __file__, "--worker", mode, *arguments]
    env = os.environ | {
        "LD_PRELOAD": str(model),
        "MODEL_CUDA": "costless",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(records.ROOT / "python"),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{mode}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def count(mode: str, model: Path, keep: Path | None) -> dict[str, float]:
    """The figures of one mode, a step."""
    times, _ = run(mode, model, under=[], arguments=["--timed"])
    with tempfile.TemporaryDirectory() as folder:
        out = (keep or Path(folder)) / f"callgrind.{mode}"
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
        callgrind += [f"--callgrind-out-file={out}"]
        figures, said = run(mode, model, under=callgrind, arguments=[])
    collected = re.search(r"Collected : (\d+)", said)
    if collected is None:
        raise RuntimeError(f"{mode}: {said[-4000:]}")
    return {"instructions": int(collected.group(1)) / STEPS} | figures | times


def main(argv: list[str] | None = None) -> int:
    """Carry out the command line; the program's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--timed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--model", type=Path, default=records.ROOT / "build/lib/libmodel_cuda.so", help="built"
    )
    parser.add_argument("--label", default="now", help="under which the figures are written")
    parser.add_argument("--keep", type=Path, help="folder for what callgrind writes")
    parser.add_argument("--out", type=Path, help="JSON file; other labels in it stay")
    given = parser.parse_args(argv)
    if given.worker:
        work(given.worker, given.timed)
        return 0
    rows = {mode: count(mode, given.model, given.keep) for mode in given.modes}
    plain = rows.get("plain")
    operators = rows.get("fits", {}).get("operators", 0)
    for mode, row in rows.items():
        if plain is not None:
            row["over_plain"] = row["instructions"] / plain["instructions"] - 1
        if operators:
            row["instructions_per_operator"] = row["instructions"] / operators
        print(mode, json.dumps(row))
    if given.out is not None:
        known = json.loads(given.out.read_text()) if given.out.exists() else {}
        commit, dirty = records.commit()
        facts = {"machine": "2 virtual cores, model of the CUDA runtime"}
        facts |= {"commit": commit, "commit_dirty": dirty}
        known[given.label] = facts | {"modes": known.get(given.label, {}).get("modes", {}) | rows}
        records.write(known, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
