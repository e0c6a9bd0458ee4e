"""A trainer that saves checkpoints, killed at any moment and started anew until it has finished.

Each life is a fork of this process, which has loaded PyTorch and computed nothing. It prints the
digests of what the killed runs, and one that nobody has killed, have come to.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # each life would import it
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms

STEPS = 6
KILL = 6  # faults_preload.cpp
SETTINGS: list[dict[str, Any]] = [
    {"limit": "640KiB"},
    {"limit": "16MiB", "stress": True},
    {"limit": "16MiB", "stress": "drop"},
]


class Killer(TorchDispatchMode):
    """The process dies before its n-th operator."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        self.seen += 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return func(*args, **(kwargs or {}))


def train(path: Path) -> None:
    """From the last checkpoint, or the beginning, to the end."""
    torch.manual_seed(7)
    layers = [torch.nn.Linear(96, 96) for _ in range(4)]
    dropout = torch.nn.Dropout(0.1)
    model = torch.nn.Sequential(*layers[:2], torch.nn.Tanh(), dropout, *layers[2:])
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        done = saved["done"]
    for step in range(done, STEPS):
        x = torch.randn(64, 96)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "done": step + 1,
        }
        torch.save(saved, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def live(path: Path, settings: dict[str, Any] | None, operator: int, call: int) -> bool:
    """One life; whether it came to its end. Death comes before an operator, or a system call."""
    child = os.fork()
    if child == 0:
        try:
            if settings is not None:
                torch_lms.enable(device="cpu", min_block="4KiB", **settings)
            shim = ctypes.CDLL(sys.argv[1])
            shim.fault_arm(call, KILL if call > 0 else 0)
            with Killer(operator) as killer:
                train(path)
            counts = [killer.seen, int(shim.fault_calls())]
            path.with_suffix(".counts").write_text(json.dumps(counts))
            if settings is not None and torch_lms.memory_stats("cpu")["evictions"] == 0:
                os._exit(3)
            torch_lms.disable()
            os._exit(0)
        except BaseException as error:  # of a child: nothing else may run here
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(2)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if status != 0:
        raise SystemExit(f"a trainer ended with status {status}")
    return True


def result(path: Path) -> str:
    """All bits of a checkpoint's tensors."""
    saved = torch.load(path)
    digest = hashlib.sha256(repr(saved["done"]).encode())
    tensors = [*saved["model"].values(), saved["generator"]]
    for entry in saved["optimizer"]["state"].values():
        tensors += [value for value in entry.values() if isinstance(value, torch.Tensor)]
    for tensor in tensors:
        digest.update(bytes(tensor.flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    folder, seed = Path(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    assert live(folder / "plain.pt", None, 0, 0)
    runs: list[str] = []
    kills = 0
    for number, settings in enumerate(SETTINGS):
        settings = {**settings, "host_limit": "16MiB"}
        whole = folder / f"whole{number}.pt"
        assert live(whole, settings, 0, 0)
        runs.append(result(whole))
        operators, calls = json.loads(whole.with_suffix(".counts").read_text())
        path = folder / f"killed{number}.pt"
        for lives in itertools.count():
            # A life lasts a quarter of the way, or a half at most.
            before_operator = lives % 2 == 0
            operator = chance.randrange(1, operators // 2) if before_operator else 0
            call = 0 if before_operator else chance.randrange(1, calls // 2)
            if live(path, settings, operator, call):
                break
            kills += 1
        runs.append(result(path))
    left = sorted(entry.name for entry in Path(os.environ["LMS_DIR"]).iterdir())
    print(
        json.dumps(
            {"plain": result(folder / "plain.pt"), "killed": runs, "kills": kills, "left": left}
        )
    )


if __name__ == "__main__":
    main()
