"""Programs: every optimizer of ``torch.optim``, plain, over lists, and fused where it exists."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .networks import mlp
from .registry import Result, data, program, seed, summary, train

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 1e-2}),
    "adamw": (torch.optim.AdamW, {}),
    "amsgrad": (torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
}
# Under a tight limit what counts is the family of operators, not the formula.
TIGHT = {"sgd_momentum", "adamw"}
FUSED = {"sgd", "sgd_momentum", "sgd_nesterov", "adam", "adamw", "amsgrad", "adagrad"}


def _run(device: str, name: str, options: dict[str, bool]) -> Result:
    seed()
    kind, settings = OPTIMIZERS[name]
    model = mlp().to(device)
    optimizer = kind(model.parameters(), **settings, **options)

    def loss_of(step: int) -> torch.Tensor:
        x = data(16, 64, device=device, value=step)
        return (model(x) - x).square().mean()

    return summary(model, optimizer, losses=train(model, optimizer, loss_of, steps=4))


for _name in OPTIMIZERS:
    _forms = {"plain": {"foreach": False}, "foreach": {"foreach": True}}
    if _name in FUSED:
        _forms["fused"] = {"fused": True}
    for _form, _options in _forms.items():
        _call = functools.partial(_run, name=_name, options=_options)
        # PyTorch has no fused Adagrad on CUDA.
        _devices = ["cpu"] if (_name, _form) == ("adagrad", "fused") else ["cpu", "cuda"]
        program(f"optimizer_{_name}_{_form}", devices=_devices, tight=_name in TIGHT)(_call)


@program()
def optimizer_adafactor(device: str) -> Result:
    """Factored second moments."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.Adafactor(model.parameters())
    x = data(16, 64, device=device)
    losses = train(model, optimizer, lambda step: (model(x) - x).square().mean())
    return summary(model, optimizer, losses=losses)


@program()
def optimizer_lbfgs(device: str) -> Result:
    """A closure called several times a step, and a history of flat gradients."""
    seed()
    model = mlp().to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    x = data(16, 64, device=device)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return {"weights": dict(model.state_dict()), "losses": losses}


@program()
def optimizer_tensor_lr_and_ema(device: str) -> Result:
    """A learning rate that is a tensor, averaged weights, and a scheduler."""
    seed()
    model = mlp().to(device)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=device != "cpu")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for step in range(3):
        x = data(16, 64, device=device, value=step)
        losses += train(model, optimizer, lambda _, x=x: (model(x) - x).square().mean(), steps=1)
        average.update_parameters(model)
        schedule.step()
    return summary(model, optimizer, losses=losses, average=dict(average.state_dict()))
