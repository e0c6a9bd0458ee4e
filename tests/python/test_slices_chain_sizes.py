"""Results that wait for who uses them, in steps that differ in sizes alone."""

from __future__ import annotations

import pytest
from test_slices import DEVICES, MIB, bits, sliced
from test_slices_chains import SCALE, by_rows, words

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("device", DEVICES)
def test_what_has_waited_once_waits_in_all_sizes(device: str) -> None:
    """Steps that differ in sizes alone are the same operators."""
    large, small, classes = 256, 4, 16411
    plain = {rows: bits(words(device, classes, rows)) for rows in (large, small)}
    with sliced(device, 25 * MIB * SCALE[device], slices="auto", deferred_updates=True):
        counts = []
        for rows in (small, large, small):
            before = by_rows()
            assert bits(words(device, classes, rows)) == plain[rows]
            counts.append(by_rows() - before)
    assert counts[0] == 0
    assert counts[1] > 0
    assert counts[2] > 0
