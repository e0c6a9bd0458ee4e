"""Random small programs, and the limits that LMS's errors name for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import torch_lms

PAGE = 4096
KIB = 1 << 10
_MOST_LIMITS = 64
_LARGEST = 1 << 20  # bytes of a tensor that is used again

Bits = list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], bytes]]
Step = Callable[["World"], None]


class World:
    """The tensors of one run of a program."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.optimizer: torch.optim.Optimizer | None = None
        self.kept: list[Any] = []

    def take(self, index: int) -> Tensor:
        return self.tensors[index % len(self.tensors)]

    def put(self, tensor: Tensor) -> None:
        if tensor.untyped_storage().nbytes() <= _LARGEST:
            self.tensors.append(tensor)


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    """Numbers that take no operator with temporaries of its own."""
    count = 1
    for size in sizes:
        count *= size
    x = torch.arange(count, dtype=torch.float32)
    return x.mul_(0.618034 * (seed + 1)).remainder_(1.0).sub_(0.5).view(sizes)


def _flat(x: Tensor) -> Tensor:
    """As a matrix, however it lies."""
    return x if x.dim() == 2 else x.reshape(x.size(0) if x.dim() > 1 else 1, -1)


def _planes(x: Tensor) -> Tensor | None:
    x = _flat(x)
    if not x.is_contiguous() or x.size(0) % 4 or x.size(1) % 4 or min(x.size()) < 8:
        return None
    return x.view(1, 4, x.size(0) // 4, x.size(1))


def _pool(x: Tensor, which: int) -> Tensor:
    planes = _planes(x)
    if planes is None:
        return x + 1.0
    if which == 0:
        return functional.max_pool2d(planes, 2)
    if which == 1:
        return functional.avg_pool2d(planes, 3, stride=1, padding=1)
    return functional.conv2d(planes, numbers(5, 4, 3, 3), padding=1)


def _matmul(x: Tensor, columns: int) -> Tensor:
    x = _flat(x)
    return x @ numbers(x.size(1), columns, seed=2)


def _embed(x: Tensor, rows: int) -> Tensor:
    x = _flat(x)
    return functional.embedding(torch.arange(rows) * 7 % x.size(0), x)


def _norm(x: Tensor, which: int) -> Tensor:
    x = _flat(x)
    if which == 0:
        return functional.layer_norm(x, (x.size(1),))
    return functional.batch_norm(x, None, None, training=True) if x.size(0) > 1 else x * 1.0


def _view(x: Tensor, how: int) -> Tensor:
    x = _flat(x)
    if how == 0:
        return x.t()
    if how == 1:
        return x[x.size(0) // 3 :]
    if how == 2:
        return x[:, x.size(1) // 4 :]
    return x.unsqueeze(0)


def _odd(x: Tensor, which: int) -> Tensor:
    x = _flat(x)
    return [
        lambda: x.cumsum(0),
        lambda: x.sort(dim=-1)[0],
        lambda: x.sum(0),
        lambda: x.t().contiguous(),
        lambda: x.topk(1, dim=-1)[0],
        lambda: x[torch.arange(x.size(0)) % 3 == 0],
        lambda: torch.logaddexp(x, x),
        lambda: x.norm(dim=1),
        lambda: x.index_select(0, torch.arange(0, x.size(0), 2)),
        lambda: torch.stack([x, x]).mean(0),
        lambda: x.std(dim=0),
        lambda: x.roll(1, 0),
    ][which]()


# What a line may do to one tensor.
_UNARY: list[Callable[[random.Random], Callable[[Tensor], Tensor]]] = [
    lambda c: functional.relu,
    lambda c: torch.sigmoid,
    lambda c: functional.gelu,
    lambda c: torch.tanh,
    lambda c: lambda x: x * 1.5,
    lambda c: lambda x: x.clone(),
    lambda c: lambda x: x.to(torch.bfloat16).float(),
    lambda c: lambda x: x.to(torch.float64).float(),
    lambda c: lambda x: torch.softmax(x, -1),
    lambda c: lambda x: torch.log_softmax(x, -1),
    lambda c: lambda x: torch.softmax(x, 0),
    lambda c: lambda x: torch.where(x > 0, x, x * 0.5),
    lambda c: lambda x: x.masked_fill(x > 0.25, 0.125),
    lambda c: (lambda n: lambda x: _norm(x, n))(c.randrange(2)),
    lambda c: (lambda n: lambda x: _pool(x, n))(c.randrange(3)),
    lambda c: (lambda n: lambda x: _matmul(x, n))(c.choice([3, 32, 200])),
    lambda c: (lambda n: lambda x: _embed(x, n))(c.choice([5, 64, 500])),
    lambda c: (lambda n: lambda x: _odd(x, n))(c.randrange(12)),
    lambda c: (lambda n: lambda x: _view(x, n))(c.randrange(4)),
    lambda c: (lambda n: lambda x: _view(x, n))(c.randrange(4)),
]
_IN_PLACE: list[Callable[[Tensor], Any]] = [
    lambda x: x.mul_(1.25),
    lambda x: x.relu_(),
    lambda x: x.add_(0.5),
    lambda x: x.fill_(0.75),
    lambda x: x.masked_fill_(x > 0.5, 0.25),
    lambda x: x.zero_(),
]
_BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: torch.maximum(x, y),
    lambda x, y: x + _flat(y)[:, :1].reshape(-1)[:1],
    lambda x, y: torch.cat([_flat(x), _flat(y)], 0),
    lambda x, y: torch.cat([_flat(x), _flat(y)], 1),
    lambda x, y: x.copy_(y),
    lambda x, y: x.add_(y, alpha=0.5),
]


def _line(chance: random.Random) -> tuple[str, Step]:
    """One that changes the world."""
    a, b = chance.randrange(64), chance.randrange(64)
    kind = chance.random()
    if kind < 0.15:
        rows, columns = chance.choice([1, 8, 60, 256]), chance.choice([16, 100, 512, 1000])
        return "new", lambda w: w.put(numbers(rows, columns, seed=a))
    if kind < 0.55:
        index = chance.randrange(len(_UNARY))
        unary = _UNARY[index](chance)
        return f"unary {index}", lambda w: w.put(unary(w.take(a)))
    if kind < 0.7:
        index = chance.randrange(len(_IN_PLACE))
        return f"in place {index}", lambda w: void(_IN_PLACE[index](w.take(a)))
    if kind < 0.85:
        index = chance.randrange(len(_BINARY))

        def binary(w: World) -> None:
            x = w.take(a)
            same = [y for y in w.tensors if y.shape == x.shape and y.dtype == x.dtype]
            y = same[b % len(same)]
            # Whatever overlaps itself, or the other, has no result that is sure.
            if index >= 6:
                y = y.clone()
            w.put(_BINARY[index](x, y).view_as(x) if index >= 6 else _BINARY[index](x, y))

        return f"binary {index}", binary
    if kind < 0.95:
        return "drop", lambda w: void(w.tensors.pop(a % len(w.tensors)) if w.tensors[1:] else 0)
    return "pointer", lambda w: void(w.take(a).data_ptr())


def void(_: object) -> None:
    """For lines that are expressions."""


def _training(chance: random.Random) -> list[tuple[str, Step]]:
    """A model, its loss, its gradients, and an update of its weights."""
    batch, width = chance.choice([16, 64, 200]), chance.choice([32, 128, 300])
    words = chance.choice([10, 500, 1500])
    layers = [chance.randrange(6) for _ in range(chance.randrange(1, 5))]
    foreach, adam = chance.random() < 0.5, chance.random() < 0.5

    def make(w: World) -> None:
        if w.weights:
            return
        w.weights = [numbers(width, width, seed=9).mul_(0.1) for _ in layers]
        w.weights.append(numbers(words, width, seed=5).mul_(0.1))
        for weight in w.weights:
            weight.requires_grad_()
        kind: Any = torch.optim.AdamW if adam else torch.optim.SGD
        w.optimizer = kind(w.weights, lr=0.01, foreach=foreach)

    def step(w: World) -> None:
        assert w.optimizer is not None
        w.optimizer.zero_grad()
        x = functional.embedding(torch.arange(batch) % words, w.weights[-1])
        for layer, weight in zip(layers, w.weights, strict=False):
            y = x @ weight
            if layer == 0:
                y = functional.relu(y)
            elif layer == 1:
                y = functional.gelu(functional.layer_norm(y, (width,)))
            elif layer == 2:
                y = torch.softmax(y, -1) * x
            elif layer == 3:
                y = torch.cat([y, x], 1)[:, ::2].contiguous()
            elif layer == 4 and width % 4 == 0:
                y = functional.avg_pool2d(y.view(1, 1, batch, width), 3, 1, 1).view(batch, width)
            x = x + y
        logits = x @ w.weights[-1].t()
        if chance_16:
            logits = logits.bfloat16().float()
        functional.cross_entropy(logits, torch.arange(batch) * 3 % words).backward()
        w.optimizer.step()

    chance_16 = chance.random() < 0.5
    return [("weights", make), ("step", step)]


@dataclass
class Program:
    """What is to be done, line by line; each run does the very same."""

    lines: list[tuple[str, Step]]
    rounds: int = 1

    done: int = 0  # lines that this run has ended

    def run(self) -> World:
        """All of it."""
        world = World()
        self.done = 0
        for _ in range(self.rounds):
            del world.tensors[:]
            for _, line in self.lines:
                line(world)
                self.done += 1
        return world


def program(seed: int) -> Program:
    """The program of that number."""
    chance = random.Random(seed)
    if chance.random() < 0.3:
        return Program(_training(chance), rounds=chance.choice([1, 2, 6]))
    lines: list[tuple[str, Step]] = [
        ("new", lambda w: w.put(numbers(64, 256))),
        ("new", lambda w: w.put(numbers(256, 64, seed=1))),
    ]
    lines += [_line(chance) for _ in range(chance.randrange(2, 16))]
    return Program(lines, rounds=chance.choice([1, 1, 1, 5]))


def settings(seed: int) -> dict[str, Any]:
    """What it runs under, beside the limit."""
    chance = random.Random(-1 - seed)
    return {
        "min_block": chance.choice([64, 64, 512, 4096, 65536]),
        "slices": chance.choice(["parts", "parts", "off", "always"]),
        "recompute": chance.random() < 0.5,
        "plan": chance.choice(["off", "off", "now"]),
        "plan_cache": "off",
        "plan_seconds": 0.05,
        "device": "cpu",
    }


def bits(world: World) -> Bits:
    """What the program has left."""
    found = []
    for tensor in [*world.tensors, *world.weights]:
        x = tensor.detach()
        data = x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found.append((x.dtype, tuple(x.shape), x.stride(), data))
    return found


class _Place(TorchDispatchMode):
    """How many operators have been called, and which was the last."""

    count = 0
    last = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += 1
        self.last = str(func)
        return func(*args, **(kwargs or {}))


@dataclass
class Outcome:
    """Of one run under one limit."""

    limit: int
    bits: Bits | None = None
    place: tuple[int, int] = (0, 0)  # of the operator that failed, among all
    operator: str = ""
    named: int = 0  # the smallest limit that the error names
    below: bool = False
    text: str = ""
    stats: dict[str, int] = field(default_factory=dict)


def run_at(it: Program, limit: int, **how: Any) -> Outcome:
    """Runs it once, and says what became of it."""
    place = _Place()
    outcome = Outcome(limit)
    world = None
    torch_lms.enable(limit=f"{limit}B", **how)
    try:
        try:
            with place:
                world = it.run()
        except torch.OutOfMemoryError as error:
            said = torch.ops.lms.need_of(str(error))
            outcome.text = str(error)
            outcome.named = int(said.get("least_limit", 0))
            outcome.below = said.get("full") == "below"
            outcome.operator = said.get("operator", "") + " in " + place.last
            outcome.place = (it.done, place.count)
        outcome.stats = dict(torch_lms.memory_stats("cpu"))
    finally:
        torch_lms.disable()
    if world is not None:
        outcome.bits = bits(world)
    return outcome


def follow(it: Program, limit: int, **how: Any) -> list[Outcome]:
    """Runs it under ``limit``, and under what the errors name, until it runs."""
    outcomes: list[Outcome] = []
    while not outcomes or outcomes[-1].bits is None:
        outcomes.append(run_at(it, limit, **how))
        assert len(outcomes) < _MOST_LIMITS, [o.named for o in outcomes]
        assert outcomes[-1].bits is not None or outcomes[-1].named > limit, outcomes[-1].text
        limit = outcomes[-1].named
    return outcomes


def too_small(outcomes: list[Outcome]) -> list[Outcome]:
    """Those whose limit was named by an error of the operator that failed there again."""
    pairs = zip(outcomes, outcomes[1:], strict=False)
    return [b for a, b in pairs if b.bits is None and b.place <= a.place]
