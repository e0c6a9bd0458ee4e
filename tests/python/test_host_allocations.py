"""What LMS takes from the heap in a step like all those before: nothing, while everything fits."""

from __future__ import annotations

from on_model import run_on_model


def test_steady_steps_take_nothing_from_the_heap() -> None:
    """Counted on the model of CUDA, by where in the library each came from."""
    said = run_on_model("allocations_program.py")
    assert said.splitlines()[0].startswith("evictions 0, "), said
    assert said.splitlines()[1] == "0 allocations", said
