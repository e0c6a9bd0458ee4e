"""What `explain()` says of a device, from its statistics."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

import torch_lms
from torch_lms._explain import Situation, explain
from torch_lms._learnt import LearntStep

pytestmark = pytest.mark.pinned

GIB = 2**30
STEP = LearntStep(
    operators=100, in_memory_ms=200.0, in_memory_peak=20 * GIB, least=3 * GIB,
    least_operator="aten::convolution_backward", unmovable=0, largest_list=0, list_operator="",
)  # fmt: skip


def situation(learnt: LearntStep | None = None, planning: bool = True, **stats: int) -> Situation:
    """A device of 10 GiB; `a__b` stands for the key `a.b`."""
    given = {"limit": 10 * GIB, "host_limit": 100 * GIB}
    given |= {name.replace("__", "."): value for name, value in stats.items()}
    return Situation("cuda:0", defaultdict(int, given), planning, learnt)


PLANNED = {"evictions": 9, "plan__shapes": 1, "plan__planned": 1, "plan__steps": 50}


@pytest.mark.parametrize(
    ("now", "says", "not_said"),
    [
        (situation(), ["Nothing has had to leave"], ["What would help", "Moved"]),
        (situation(evictions=5), ["no step has repeated", "after twenty"], ["Planned:"]),
        (situation(evictions=5, plan__shapes=1), ["its plan is being made, or none was"], []),
        (situation(evictions=5, plan__shapes=1, plan__planned=1), ["none has followed"], []),
        (situation(evictions=5, planning=False), ["Plans are off", "plan='on'"], ["twenty"]),
        (
            Situation("cpu", situation(evictions=5).stats, False, None, "nothing has had to leave"),
            ["Plans are off"],
            ["Nothing has had to leave"],
        ),
        (situation(**PLANNED), ["Planned: 50 steps"], ["What would help", "should take"]),
        (
            situation(STEP, **PLANNED, plan__predicted_us=210_000),
            ["should take 210.0 ms, 5 % more", "takes 20.0 GiB", "Below 3.0 GiB",
             "aten::convolution_backward"],
            ["What would help"],
        ),
        (
            situation(STEP, **PLANNED, plan__predicted_us=300_000),
            ["50 % more", "A larger limit"],
            ["step_in_backward", "the CPU"],
        ),
        (
            situation(STEP, **PLANNED, plan__predicted_us=300_000, plan__late_us=60_000,
                      plan__host_us=290_000),
            ["For 60.0 ms of it the device waits for the CPU, which takes 290.0", "Less work for"],
            [],
        ),
        (
            situation(**PLANNED, plan__divergences=30),
            ["30 steps turned out", "pad or drop"],
            [],
        ),
        (situation(**PLANNED, plan__divergences=2), ["2 steps turned out"], ["pad or drop"]),
        (
            situation(kept__bytes__current=2 * GIB, evictions=1),
            ["2.0 GiB of it stay", "Fewer p"],
            [],
        ),
        (situation(kept__bytes__current=2**20, evictions=1), ["1.0 MiB of it stay"], ["Fewer p"]),
        (situation(**PLANNED, host__bytes__current=90 * GIB), ["A larger host_limit"], []),
        (situation(**PLANNED, host__bytes__current=9 * GIB), ["9.0 GiB lie in"], ["A larger"]),
        (situation(drops=1, dropped__bytes__current=GIB), ["1.0 GiB are nowhere"], []),
    ],
)  # fmt: skip
def test_each_situation(now: Situation, says: list[str], not_said: list[str]) -> None:
    text = explain(now)
    for words in says:
        assert words in text, text
    for words in not_said:
        assert words not in text, text


def test_an_optimizer_that_goes_through_all_at_once() -> None:
    from dataclasses import replace

    step = replace(STEP, largest_list=5 * GIB, list_operator="aten::_fused_adamw_")
    text = explain(situation(step, **PLANNED, plan__predicted_us=300_000))
    assert "step_in_backward(optimizer): aten::_fused_adamw_ goes through 5.0 GiB" in text


def test_an_optimizer_that_goes_through_all_several_times() -> None:
    from dataclasses import replace

    slow = {**PLANNED, "plan__predicted_us": 300_000}
    step = replace(STEP, foreach=22 * GIB, foreach_once=8 * GIB)
    assert "fused=True" in (text := explain(situation(step, **slow)))
    assert "(_foreach_...) go 2.8 times through 8.0 GiB" in text
    for quick in (replace(step, foreach=8 * GIB), replace(step, foreach_once=2 * GIB)):
        assert "fused=True" not in explain(situation(quick, **slow))
    assert "fused=True" not in explain(situation(step, **PLANNED, plan__predicted_us=210_000))
    assert "fused=True" not in explain(situation(step, **slow, deferred__in_lists=80)), "once"


def test_a_step_that_cannot_be_planned() -> None:
    stats = situation(evictions=5, plan__shapes=1).stats
    now = Situation("cuda:0", stats, state="no plan could be made for this step")
    text = explain(now)
    assert "A larger limit: what one operator" in text and "more steps" not in text


def test_nothing_is_managed() -> None:
    assert "manages nothing" in torch_lms.explain()
    with pytest.raises(RuntimeError, match="call torch_lms.enable"):
        torch_lms.explain("cpu")


def test_a_loop_on_the_cpu() -> None:
    torch_lms.enable(limit="160KiB", min_block=4096, device="cpu", plan="now")
    assert "Nothing has had to leave" in torch_lms.explain()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(12)]
    optimizer = torch.optim.SGD([weight for one in layers for weight in one.parameters()], lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        value = torch.ones(64, 64)
        for layer in layers:
            value = layer(value)
        value.square().mean().backward()
        optimizer.step()
    stats = torch_lms.memory_stats()
    text = torch_lms.explain()
    assert stats["plan.steps"] > 0
    assert f"Planned: {stats['plan.steps']} steps" in text
    assert "should take" in text and "lie in the file" in text and "Below " in text
    weight = layers[0].weight.detach()
    weight.numpy()
    assert "a pointer to them is out" in torch_lms.explain("cpu")
    torch_lms.disable()
    torch_lms.enable(limit="1GiB", device="cpu")
    assert "Nothing has had to leave" in torch_lms.explain("cpu"), "it goes by what was before"
