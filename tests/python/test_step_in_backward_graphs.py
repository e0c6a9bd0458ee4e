"""Updating in the backward pass, over several backward passes and graphs of every kind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from step_in_backward_support import (
    equal,
    fresh,
    loss_of,
    maker,
    outcome,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_lms

pytestmark = pytest.mark.usefixtures("one_thread")


def test_accumulated_gradients() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(maker("AdamW", foreach=True))
        handle = torch_lms.step_in_backward(optimizer) if in_backward else None
        for step in range(8):
            optimizer.zero_grad()
            for micro in range(3):
                last = micro == 2
                hold = handle.accumulate() if handle is not None and not last else nullcontext()
                with hold:
                    # The last one leaves the expert out: its gradient is still there at step().
                    (loss_of(net, 3 * step + micro, use_expert=not last) / 3).backward()
            optimizer.step()
        return outcome(net, optimizer)

    assert equal(run(True), run(False))


def test_clipping_and_scaling_with_all_gradients_kept() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(maker("SGD", momentum=0.9, fused=True))
        handle = torch_lms.step_in_backward(optimizer) if in_backward else None
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for step in range(8):
            optimizer.zero_grad()
            with handle.accumulate() if handle is not None else nullcontext():
                loss = loss_of(net, step)
                if step == 4:
                    loss = loss * float("inf")  # a step that the scaler skips
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), outcome(net, optimizer)

    assert equal(run(True), run(False))


def test_each_gradient_may_be_clipped_by_value_in_a_hook() -> None:
    clip = 1e-3

    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(maker("SGD", momentum=0.9))
        if in_backward:
            torch_lms.step_in_backward(optimizer)
            for p in net.parameters():
                if p.requires_grad:
                    p.register_hook(lambda grad: grad.clamp(-clip, clip))
        for step in range(4):
            optimizer.zero_grad()
            loss_of(net, step).backward()
            if not in_backward:
                nn.utils.clip_grad_value_(net.parameters(), clip)
            optimizer.step()
        return outcome(net, optimizer)

    assert equal(run(True), run(False))


@pytest.mark.parametrize("settings", [{}, {"foreach": False}])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "SparseAdam"])
def test_sparse_gradients(name: str, settings: dict[str, Any]) -> None:
    if name == "SparseAdam":
        settings = {}

    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        tables = nn.ModuleList(nn.Embedding(32, 4, sparse=True) for _ in range(2))
        optimizer = getattr(torch.optim, name)(tables.parameters(), lr=0.1, **settings)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        for step in range(4):
            tokens = torch.tensor([step, 3, step, 7])
            optimizer.zero_grad()
            sum(table(tokens).square().sum() for table in tables).backward()
            assert (tables[0].weight.grad is None) == in_backward
            optimizer.step()
        return outcome(tables, optimizer)

    assert equal(run(True), run(False))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks(reentrant: bool) -> None:
    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, fused=True)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        x = torch.randn(5, 8, requires_grad=True)
        for _ in range(6):
            optimizer.zero_grad()
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=reentrant)
            y.square().sum().backward()
            optimizer.step()
        return outcome(layers, optimizer)

    assert equal(run(True), run(False))


def test_a_weight_that_is_shared_is_updated_once_all_its_gradients_are_in() -> None:
    """At several depths, and under checkpointing that is not reentrant."""
    updates = []

    def run(in_backward: bool) -> Any:
        torch.manual_seed(1)
        shared = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(shared.parameters(), lr=0.05, momentum=0.9, fused=True)
        if in_backward:
            torch_lms.step_in_backward(optimizer)
            shared.weight.register_post_accumulate_grad_hook(updates.append)
        for _ in range(5):
            optimizer.zero_grad()
            x = torch.ones(3, 6)
            for _ in range(3):
                x = checkpoint(lambda y: shared(y).sin(), shared(x).tanh(), use_reentrant=False)
            x.square().sum().backward()
            optimizer.step()
        return outcome(shared, optimizer)

    assert equal(run(True), run(False))
    assert len(updates) == 5


def test_compiled_modules() -> None:
    def run(in_backward: bool) -> Any:
        net, optimizer = fresh(maker("Adam", foreach=True))
        if in_backward:
            torch_lms.step_in_backward(optimizer)
        compiled = torch.compile(net, backend="aot_eager")
        for step in range(4):
            optimizer.zero_grad()
            loss_of(compiled, step).backward()
            assert (net.conv.weight.grad is None) == in_backward
            optimizer.step()
        return outcome(net, optimizer)

    assert equal(run(True), run(False))
    torch.compiler.reset()
