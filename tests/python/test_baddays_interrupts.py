"""Bad days: exceptions and Ctrl-C in the middle of a step."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
import torch
from stress import harness
from stress.networks import Transformer
from stress.probe import DEVICES, block, reference, same, send_away, state
from stress.registry import Result, data, labels, seed, summary
from torch.nn import functional

pytestmark = [
    pytest.mark.parametrize("device", DEVICES),
    pytest.mark.filterwarnings("ignore"),
]


class Job:
    """A job that keeps a checkpoint in memory before each step and can return to it."""

    def __init__(self, device: str) -> None:
        seed()
        self.model = Transformer().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.tokens = labels(2 * 33, 96, device).view(2, 33)
        self.device = device
        self.losses: list[torch.Tensor] = []

    def save(self) -> dict[str, Any]:
        """Copies of everything that a step changes."""
        optimizer = self.optimizer.state_dict()
        state = {
            key: {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in item.items()}
            for key, item in optimizer["state"].items()
        }
        return {
            "model": {name: t.clone() for name, t in self.model.state_dict().items()},
            "optimizer": {"state": state, "param_groups": optimizer["param_groups"]},
            "generator": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if self.device == "cuda" else None,
            "losses": len(self.losses),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Back to ``save``."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        if saved["cuda"] is not None:
            torch.cuda.set_rng_state(saved["cuda"])
        del self.losses[saved["losses"] :]

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad()
        logits = self.model(self.tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach().clone())

    def result(self) -> Result:
        """All of it."""
        return summary(self.model, self.optimizer, losses=self.losses)


def _plain(device: str, steps: int) -> dict[str, bytes]:
    job = Job(device)
    for _ in range(steps):
        job.step()
    first = harness.bits_of(job.result())
    again = Job(device)
    for _ in range(steps):
        again.step()
    if harness.differences(first, harness.bits_of(again.result())):
        pytest.skip("two plain runs differ")
    return first


@pytest.mark.parametrize("stress", [True, False], ids=["stress", "tight"])
def test_interrupts_at_any_time(device: str, stress: bool) -> None:
    """SIGINT at many moments of a step; back to the checkpoint, and on: the same bits."""
    expected = _plain(device, 6)
    settings: dict[str, Any] = {"stress": True} if stress else {"limit": "2MiB"}
    caught = 0
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with harness.managed(device, **settings):
            job = Job(device)
            job.step()
            delay = 0.002
            while len(job.losses) < 6:
                saved = job.save()
                kept = {name: t.clone() for name, t in saved["model"].items()}
                start = time.monotonic()
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
                        job.step()
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    caught += 1
                    for name, tensor in kept.items():
                        assert same(tensor, saved["model"][name]), f"{name} was damaged"
                    job.restore(saved)
                    # Later and later, until the step is through.
                    delay = min(2 * delay, 2.0)
                else:
                    delay = max(0.002, (time.monotonic() - start) / 3)
            harness.check_same(expected, harness.bits_of(job.result()), "after interrupts")
        assert caught > 0, "no interrupt arrived in mid-step"
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("where", ["forward", "backward", "kernel", "optimizer"])
def test_exceptions(device: str, where: str) -> None:
    """An exception in each part of a step; nothing stays pinned, nothing is lost."""
    expected = _plain(device, 4)

    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    with harness.managed(device, stress=True) as package:
        job = Job(device)
        job.step()
        saved = job.save()
        if where == "forward":
            handle = job.model.layers[1].register_forward_pre_hook(fail)
        elif where == "backward":
            handle = job.model.norm.weight.register_hook(fail)
        elif where == "optimizer":
            handle = job.optimizer.register_step_post_hook(fail)
        else:
            handle = job.model.layers[0].register_forward_hook(lambda m, i, o: o @ o)
        with pytest.raises((ValueError, RuntimeError)):
            job.step()
        handle.remove()
        assert package.memory_stats(device)["pinned.bytes.current"] == 0
        job.restore(saved)
        while len(job.losses) < 4:
            job.step()
        harness.check_same(expected, harness.bits_of(job.result()), f"after a failed {where}")


def test_kernel_that_fails_with_its_inputs_away(device: str) -> None:
    """An operator that refuses its arguments, and one that fails halfway in its work."""
    with harness.managed(device) as package:
        x = block(64, 64, device=device)
        for attempt in (
            lambda: x @ data(63, 64, device=device),
            lambda: torch.linalg.cholesky(-x @ x.t()),
            lambda: x.view(63, 65),
            lambda: torch.mm(x, x, out=torch.empty(64, 64, dtype=torch.int32, device=device)),
        ):
            send_away(x)
            with pytest.raises(RuntimeError):
                attempt()
            assert same(x, reference(64, 64))
        assert package.memory_stats(device)["pinned.bytes.current"] == 0
        send_away(x)
        assert state(x) == "absent"
