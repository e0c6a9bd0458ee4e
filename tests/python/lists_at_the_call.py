"""What PyTorch refuses, or counts, when an operator over lists is called, though it waits.

For ``test_lists_that_wait.py``, as ``lists_that_wait.py``.
"""

from __future__ import annotations

import pytest
import torch
from lists_that_wait import DEVICE, LAYERS, WIDTH, _managed
from lists_that_wait import _on_device as _on_device


@pytest.mark.parametrize("slices", ["auto", "always"])
@pytest.mark.parametrize("deferred", ["false", "true", "all", "updates"])
def test_tensors_of_inference_mode_are_refused_as_without(deferred: str, slices: str) -> None:
    lerp, mul = torch._foreach_lerp_, torch._foreach_mul_

    def outcomes() -> list[str]:
        a = torch.ones(WIDTH, WIDTH) * 3
        with torch.inference_mode():
            b = a * 2
        found = []
        for call in (lambda: mul([a, b], 2), lambda: mul([b], 2), lambda: lerp([a], [b], 0.5)):
            try:
                call()
                found.append("done")
            except RuntimeError as error:
                found.append(str(error).partition(".")[0])
        return [*found, str(a.sum().item()), str(b.sum().item())]

    expected = outcomes()
    with _managed(deferred_updates=deferred, slices=slices):
        assert outcomes() == expected


@pytest.mark.parametrize("slices", ["auto", "always"])
@pytest.mark.parametrize("deferred", ["false", "true", "all", "updates"])
def test_versions_count_at_the_call(deferred: str, slices: str) -> None:
    """Or autograd would not notice that it reads what has been written since."""

    def versions() -> list[int]:
        lists = [[torch.ones(WIDTH, WIDTH) * (2 + i) for _ in range(LAYERS)] for i in range(4)]
        a, b, c, d = lists
        with torch.no_grad():
            torch._foreach_mul_(a, 2.0)
            torch._foreach_addcdiv_(a, b, c, 0.5)
            torch._foreach_lerp_(b, c, 0.5)
            torch._foreach_copy_(c, b)
            steps = [torch.ones((), device=DEVICE) for _ in a]
            torch._fused_adamw_(
                a, b, c, d, [], steps, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
                eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
        return [each._version for tensors in lists for each in tensors]

    expected = versions()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more compute parts of these otherwise, so that there are none
    try:
        with _managed(deferred_updates=deferred, slices=slices):
            assert versions() == expected
    finally:
        torch.set_num_threads(threads)


def test_reading_what_an_update_has_written_is_an_error_in_autograd() -> None:
    with _managed():
        weights = [torch.ones(WIDTH, WIDTH, requires_grad=True) for _ in range(LAYERS)]
        optimizer = torch.optim.SGD(weights, 0.1, foreach=True)
        x = torch.ones(4, WIDTH, requires_grad=True)
        for weight in weights:
            x = torch.relu(x @ weight) * 0.01
        loss = x.sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
