"""What a program is: lines of Python, how often they run, and the settings of LMS it runs under.

A program is data. It is generated from a seed, kept as JSON, shrunk by leaving lines out, and
printed as the Python that it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Action:
    """One line of Python, or two lists of lines for two threads.

    ``pure``: it only binds names to results of operators that write nothing and draw no random
    numbers, so that it may be run again after it ran out of memory.
    """

    code: str = ""
    pure: bool = False
    branches: list[list[str]] = field(default_factory=list)

    def to_json(self) -> Any:
        if self.branches:
            return {"threads": self.branches}
        return {"pure": self.code} if self.pure else self.code

    @staticmethod
    def from_json(value: Any) -> Action:
        if isinstance(value, str):
            return Action(value)
        if "pure" in value:
            return Action(value["pure"], pure=True)
        return Action(branches=value["threads"])


@dataclass
class Settings:
    """Arguments of ``torch_lms.enable()``; amounts in bytes."""

    limit: int = 1 << 30
    host_limit: int = 1 << 30
    min_block: int = 4096
    stress: bool | str = False
    plan: str = "off"
    plan_seconds: float = 0.01
    recompute: bool = False
    verify: bool = True
    slices: str = "auto"
    deferred_updates: bool | str = "auto"

    def arguments(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def with_units(settings: dict[str, Any]) -> dict[str, Any]:
    """The same for ``enable()``, which takes a small number for one whose unit was forgotten."""
    amounts = {key: f"{settings[key]}B" for key in ("limit", "host_limit") if key in settings}
    return {**settings, **amounts}


@dataclass
class Program:
    """``prelude`` runs once, ``body`` ``steps`` times, with the lines of ``extras`` after a step's.

    A program without steps is a prelude.
    """

    seed: int
    device: str = "cpu"
    settings: Settings = field(default_factory=Settings)
    prelude: list[Action] = field(default_factory=list)
    body: list[Action] = field(default_factory=list)
    steps: int = 0
    extras: dict[int, list[Action]] = field(default_factory=dict)
    ballast: int = 0  # bytes on the device beside LMS, on top of which the limits come
    threads: int = 1  # with which kernels of the CPU compute

    def actions(self) -> Iterator[Action]:
        """Every action in the order in which they run."""
        yield from self.prelude
        for step in range(self.steps):
            yield from self.body
            yield from self.extras.get(step, [])

    def size(self) -> int:
        """Lines, however often they run."""
        lists = [self.prelude, self.body, *self.extras.values()]
        return sum(sum(map(len, action.branches)) or 1 for actions in lists for action in actions)

    def copy(self) -> Program:
        return Program.from_json(json.loads(json.dumps(self.to_json())))

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "device": self.device,
            "settings": dataclasses.asdict(self.settings),
            "prelude": [action.to_json() for action in self.prelude],
            "body": [action.to_json() for action in self.body],
            "steps": self.steps,
            "extras": {
                str(step): [action.to_json() for action in actions]
                for step, actions in self.extras.items()
            },
            "ballast": self.ballast,
            "threads": self.threads,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Program:
        return Program(
            seed=value["seed"],
            device=value.get("device", "cpu"),
            settings=Settings(**value["settings"]),
            prelude=[Action.from_json(item) for item in value["prelude"]],
            body=[Action.from_json(item) for item in value.get("body", [])],
            steps=value.get("steps", 0),
            extras={
                int(step): [Action.from_json(item) for item in actions]
                for step, actions in value.get("extras", {}).items()
            },
            ballast=value.get("ballast", 0),
            threads=value.get("threads", 1),
        )


def listing(program: Program) -> str:
    """The program to read. Helpers such as ``fresh`` are those of ``world.py``."""
    settings = ", ".join(
        f"{name}={value!r}" for name, value in with_units(program.settings.arguments()).items()
    )
    lines = [f"# seed {program.seed}", f"torch_lms.enable(device={program.device!r}, {settings})"]
    if program.threads > 1:
        lines.insert(1, f"torch.set_num_threads({program.threads})")
    if program.ballast:
        lines.insert(1, f"# limits come on top of {program.ballast} bytes of PyTorch's own")
    lines += _lines(program.prelude, "")
    if program.steps:
        lines += [f"for step in range({program.steps}):", *_lines(program.body, "    ")]
        for step, actions in sorted(program.extras.items()):
            lines += [f"    if step == {step}:", *_lines(actions, "        ")]
    return "\n".join(lines)


def _lines(actions: list[Action], indent: str) -> list[str]:
    lines = []
    for action in actions:
        if action.branches:
            lines.append(f"{indent}in_threads(")
            for branch in action.branches:
                lines.append(f"{indent}  (")
                lines += [f"{indent}    {code}" for code in branch]
                lines.append(f"{indent}  ),")
            lines.append(f"{indent})")
        else:
            lines.append(indent + action.code)
    return lines or [f"{indent}pass"]
