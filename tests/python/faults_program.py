"""A program whose system calls fail, one after the other: run with faults_preload.cpp preloaded.

It prints what it did as JSON, and ends with an error if a byte is wrong, a counter does not come
out, or anything is still held.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_lms

KINDS = {"error": 1, "dead": 2, "full": 3, "tight": 4, "short": 5}
SETTINGS: dict[str, dict[str, Any]] = {
    "lru": {"slices": "off"},
    "stress": {"stress": True, "slices": "off"},
    "drop": {"stress": "drop"},
    "in place": {},
}
LASTING = ("dead", "full", "tight")
SIZE = 96  # of a matrix: 36 KiB, more than one page of a transfer
State = dict[str, torch.Tensor]


def steps() -> Iterator[tuple[str, Callable[[State], Any]]]:
    """What is computed. Each either happens or, on an error, can be done again."""

    def fresh(s: State) -> State:
        made = {
            f"w{i}": torch.arange(SIZE * SIZE).float().view(SIZE, SIZE) * 1e-4 for i in range(4)
        }
        return {key: value.add_(i).sin_() for i, (key, value) in enumerate(made.items())}

    def forward(s: State) -> State:
        x = s["w0"]
        for i in range(1, 4):
            x = torch.relu(x @ s[f"w{i}"]).mul_(0.5)
        return {"x": x, "y": torch.exp(-x)}

    def in_place(s: State) -> State:
        s["w1"].add_(s["x"])
        return {}

    def other(s: State) -> State:
        s["x"].mul_(s["y"])
        return {}

    def train(s: State) -> State:
        leaves = [s[f"w{i}"].detach().clone().requires_grad_() for i in range(4)]
        x = leaves[0]
        for leaf in leaves[1:]:
            x = torch.tanh(x @ leaf)
        x.square().mean().backward()
        with torch.no_grad():
            return {f"w{i}": leaf - leaf.grad for i, leaf in enumerate(leaves)}

    yield "fresh", fresh
    for round in range(2):
        yield f"forward {round}", forward
        yield f"in place {round}", in_place
        yield f"train {round}", train
        yield f"other {round}", other


def plain() -> dict[str, torch.Tensor]:
    """What comes out without LMS."""
    state: State = {}
    for _, step in steps():
        state.update(step(state))
    return state


class Wrong(Exception):
    """What must not be."""


def balance(stats: dict[str, int]) -> None:
    """No operator runs: nothing may be held."""
    if stats["pinned.bytes.current"] != 0:
        raise Wrong(f"{stats['pinned.bytes.current']} bytes are still pinned")


class Sweep:
    """Runs of the program under one setting, each with one fault."""

    def __init__(self, preloaded: str, settings: dict[str, Any]) -> None:
        self.shim = ctypes.CDLL(preloaded)
        self.settings = settings
        self.expected = plain()
        self.runs = 0
        self.enable()

    def enable(self) -> None:
        """LMS on, with room for a third of what there is."""
        sizes = {"limit": "320KiB", "host_limit": "2MiB", "min_block": "4KiB"}
        torch_lms.enable(device="cpu", plan="off", **sizes, **self.settings)

    def arm(self, at: int, kind: str | None) -> None:
        """From now on the system call `at` and perhaps all after it fail."""
        self.lasts = kind in LASTING
        self.shim.fault_arm(at, KINDS[kind] if kind else 0)

    def run(self, at: int, kind: str | None) -> tuple[int, int]:
        """Returns the system calls that the program made, and the errors that it saw."""
        state: State = {}
        self.arm(at, kind)
        failures = 0
        for name, step in steps():
            failures += self.insist(name, lambda step=step: state.update(step(state)))
        failures += self.compare(state)
        calls = int(self.shim.fault_calls())
        self.arm(0, None)
        self.compare(state)
        state.clear()
        self.check_empty()
        self.runs += 1
        return calls, failures

    def stop(self, at: int, kind: str | None) -> tuple[int, int]:
        """The same for disable(), when most of the bytes are in the file."""
        state: State = {}
        for _, step in steps():
            state.update(step(state))
        self.arm(at, kind)
        failures = self.insist("disable", torch_lms.disable)
        calls = int(self.shim.fault_calls())
        self.arm(0, None)
        self.compare(state)
        self.enable()
        self.runs += 1
        return calls, failures

    def compare(self, state: State) -> int:
        """By operators: the same road as everything else."""
        failures = 0
        for key, value in self.expected.items():
            same: list[bool] = []

            def look(key: str = key, value: torch.Tensor = value, same: list[bool] = same) -> None:
                same.append(torch.equal(state[key], value))

            failures += self.insist(key, look)
            if same != [True]:
                raise Wrong(f"{key} has other bytes")
        return failures

    def insist(self, name: str, action: Callable[[], Any]) -> int:
        """Until it works: again once, and where the fault lasts once more without it."""
        for tries in range(3):
            try:
                action()
                return tries
            except (RuntimeError, MemoryError) as error:
                if tries == 2 or (tries == 1 and not self.lasts):
                    raise Wrong(f"{name} fails without a fault: {error}") from error
                if tries == 1:
                    self.arm(0, None)
            balance(torch_lms.memory_stats("cpu"))
        raise AssertionError

    def check_empty(self) -> None:
        """Nothing is left of a run."""
        stats = torch_lms.memory_stats("cpu")
        for key in ("blocks", "device.bytes", "absent.bytes", "dropped.bytes", "file.bytes"):
            if stats[f"{key}.current"] != 0:
                raise Wrong(f"{key}: {stats[f'{key}.current']} are left")

    def sweep(self, action: Callable[[int, str | None], tuple[int, int]], stride: int) -> Any:
        """Every `stride`-th call fails, in every way. The number of calls, and errors by kind."""
        calls, failures = action(0, None)
        if failures:
            raise Wrong("errors without a fault")
        errors = dict.fromkeys(KINDS, 0)
        for offset, kind in enumerate(KINDS):
            for at in range(1 + offset % stride, calls + 1, stride):
                try:
                    errors[kind] += action(at, kind)[1]
                except Wrong as wrong:
                    raise Wrong(f"{kind} at call {at} of {calls}: {wrong}") from wrong
        return {"calls": calls, "errors": errors}


def main() -> None:
    torch.set_num_threads(1)
    sweep = Sweep(sys.argv[1], SETTINGS[sys.argv[2]])
    stride = int(sys.argv[3])
    result = {
        "steps": sweep.sweep(sweep.run, stride),
        "disable": sweep.sweep(sweep.stop, max(1, stride // 16)),
    }
    print(json.dumps({"runs": sweep.runs, **result}))


if __name__ == "__main__":
    main()
