"""Bad days: forked children that want to manage, or that find what is nowhere."""

from __future__ import annotations

import pytest
import torch
from stress import harness
from stress.children import in_child

pytestmark = pytest.mark.filterwarnings("ignore")

N = 128 * 128  # 64 KiB of floats


def _manages() -> bool:
    """LMS works in this process: blocks leave, and come back with the same bytes."""
    before = _package().memory_stats("cpu")["evictions"]
    mine = [torch.full((N,), float(i)).add_(1) for i in range(48)]
    right = all(bool((x == i + 1).all()) for i, x in enumerate(mine))
    return right and _package().memory_stats("cpu")["evictions"] > before + 40


def _package() -> object:
    return harness.lms()


def test_a_child_enables_after_the_parent_has_disabled() -> None:
    with harness.managed("cpu", limit="1MiB"):
        old = [torch.full((N,), float(i)).add_(0) for i in range(32)]

    def work() -> bool:
        _package().enable(device="cpu", limit="1MiB", min_block="4KiB")
        right = _manages() and all(bool((x == i).all()) for i, x in enumerate(old))
        _package().disable()
        return right and all(bool((x == i).all()) for i, x in enumerate(old))

    assert in_child(work) == 0
    # A child's child, whose parent manages.
    assert in_child(lambda: in_child(work) == 0 and work() and in_child(work) == 0) == 0
    assert all(bool((x == i).all()) for i, x in enumerate(old))


def test_a_child_whose_parent_manages_is_refused_in_words() -> None:
    with harness.managed("cpu", limit="1MiB"):
        old = [torch.full((N,), float(i)).add_(0) for i in range(32)]

        def work() -> bool:
            with pytest.raises(Exception, match="forked.*disable"):
                _package().enable(device="cpu", limit="1MiB", min_block="4KiB")
            assert not _package().is_enabled() and not _package().is_enabled("cpu")
            assert _package().devices() == []
            return all(bool((x == i).all()) for i, x in enumerate(old))

        def disables_first() -> bool:
            old[3].add_(1)
            _package().disable()
            right = bool((old[3] == 4).all()) and bool((old[30] == 30).all())
            _package().enable(device="cpu", limit="1MiB", min_block="4KiB")
            right = right and _manages()
            old[3].sub_(1)
            return right and all(bool((x == i).all()) for i, x in enumerate(old))

        assert in_child(work) == 0
        assert in_child(disables_first) == 0
        assert all(bool((x == i).all()) for i, x in enumerate(old))


def _dropped() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Tensors of which most are dropped, and find room neither on the device nor in the file."""
    source = torch.linspace(0, 1, N) * 1
    return source, [source * float(i) for i in range(16)]


def test_a_child_computes_what_the_parent_could_not() -> None:
    plain = torch.linspace(0, 1, N) * 1
    with harness.managed("cpu", stress="drop", limit="256KiB", host_limit="128KiB"):
        source, made = _dropped()

        def reads() -> bool:
            return all(torch.equal(x, plain * float(i)) for i, x in enumerate(made))

        def writes_what_they_come_of() -> bool:
            source.add_(1)
            made[2].mul_(2)
            return (
                torch.equal(source, plain + 1)
                and torch.equal(made[2], plain * 2.0 * 2)
                and all(torch.equal(x, plain * float(i)) for i, x in enumerate(made) if i != 2)
            )

        def disables() -> bool:
            _package().disable()
            return reads()

        for work in (reads, writes_what_they_come_of, disables):
            assert in_child(work) == 0, work.__name__
            state = [torch.ops.lms.state(x) for x in made]
            assert "dropped" in state, f"nothing was away at the fork: {state}"
        del made[1:]
        assert torch.equal(made[0], plain * 0.0)
