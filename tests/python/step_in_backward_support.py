"""A net and its training, with the optimizer updating in the backward pass or plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_lms

STEPS = 20
Make = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    """Weights of several shapes: one is used twice, one in some steps only, one is frozen."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.expert = nn.Linear(width, width)
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: Tensor, use_expert: bool = True) -> Tensor:
        x = self.embed(tokens)
        x = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2)) * self.frozen
        for layer in self.layers:
            x = x + functional.gelu(layer(x))
        if use_expert:
            x = x + self.expert(x).tanh()
        return functional.linear(x, self.embed.weight) * self.temperature


def groups_of(net: Net) -> list[dict[str, Any]]:
    """Matrices and the rest, with weight decay on the first."""
    matrices = [p for p in net.parameters() if p.dim() > 1]
    return [
        {"params": matrices, "weight_decay": 0.05},
        {"params": [p for p in net.parameters() if p.dim() <= 1]},
    ]


def matrices_of(net: Net) -> list[Tensor]:
    return [p for p in net.parameters() if p.dim() == 2]


def loss_of(net: nn.Module, step: int, batch: int = 3, **options: Any) -> Tensor:
    seed = torch.Generator().manual_seed(step)
    tokens = torch.randint(16, (batch, 8), generator=seed, device="cpu")
    tokens = tokens.to(next(net.parameters()).device)
    logits = net(tokens, **options)
    return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())


def fresh(make: Make, seed: int = 1) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net()
    return net, make(net)


def equal(a: Any, b: Any) -> bool:
    """The same structure, with tensors of the same kind, layout and bits."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def outcome(net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return [p.detach() for p in net.parameters()], optimizer.state_dict()


def train(
    make: Make,
    in_backward: bool,
    steps: int = STEPS,
    schedule: bool = True,
    autocast: bool = False,
) -> Any:
    """Trains with every second step leaving out the expert; returns all that came of it."""
    net, optimizer = fresh(make)
    if in_backward:
        torch_lms.step_in_backward(optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15) if schedule else None
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        device = net.conv.weight.device.type
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = loss_of(net, step, use_expert=step % 2 == 0)
        assert loss.isfinite()
        if optimizer.param_groups[0].get("maximize"):
            loss = -loss
        loss.backward()
        if in_backward:
            assert all(p.grad is None for p in net.parameters() if p in optimizer.state)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.detach())
    return losses, outcome(net, optimizer)


def maker(name: str, **settings: Any) -> Make:
    def make(net: Net) -> torch.optim.Optimizer:
        params = matrices_of(net) if name == "Muon" else groups_of(net)
        return getattr(torch.optim, name)(params, **({"lr": 0.02} | settings))

    return make
