"""The limit where PyTorch's allocator keeps free memory for every stream by itself."""

from __future__ import annotations

import pytest
from on_model import run_on_model


@pytest.mark.parametrize("words", [["1"], ["2"], ["1", "kept"]])
def test_many_streams_stay_below_the_limit(words: list[str]) -> None:
    """What other streams hold free goes before the limit is passed, and nothing runs out of memory
    for it, or for what lies high in the arena and may not leave."""
    most, limit = map(int, run_on_model("several_streams_program.py", *words).split(" of "))
    assert most <= limit


def test_a_fraction_is_a_bound_too() -> None:
    run_on_model("fractions_on_model.py")


@pytest.mark.parametrize("words", [[], ["graph"]])
def test_workspaces_of_an_earlier_run_keep_no_segment(words: list[str]) -> None:
    run_on_model("workspaces_on_model.py", *words, costless=True)


def test_an_error_says_what_is_in_use_beside() -> None:
    run_on_model("workspaces_on_model.py", "in use")


@pytest.mark.parametrize("when", ["off", "on"])
def test_what_dies_below_the_window_gives_its_memory_back(when: str) -> None:
    run_on_model("leftovers_on_model.py", when)
