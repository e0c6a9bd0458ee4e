"""``out=`` tensors that have to grow, and whose bytes have been dropped.

Composite kernels, and PyTorch's fallbacks for lazy views, give them more memory by themselves: they
copy what was there, past the dispatcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from stress.probe import state

import torch_lms

HERE = Path(__file__).resolve().parent
Views = dict[str, Callable[[torch.Tensor], torch.Tensor]]
# Of a complex tensor: what is real and plain, negative, conjugate.
LAZY: Views = {
    "real": lambda c: c.real,
    "negative": lambda c: c.conj().imag,
    "conjugate": lambda c: c.conj(),
}


@pytest.mark.parametrize("view", LAZY)
@pytest.mark.parametrize("size", [1000, 4000, 100])
def test_lazy_views(view: str, size: int) -> None:
    """What they hold is written anew, larger, as large or smaller; what else reads it is not."""

    def program() -> list[torch.Tensor]:
        c = torch.complex(torch.arange(1000.0), torch.arange(1000.0) + 3) * 1
        before = c * 2
        out = LAZY[view](c)
        x = torch.arange(float(size)) * 1
        torch.sub(x * 5, x, out=out)
        return [out + 0, before + 0, x + 0]

    expected = program()
    with torch_lms.managed(limit="64MiB", device="cpu", min_block=1, stress="drop"):
        found = program()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


COMPOSITE: dict[str, Callable[..., torch.Tensor]] = {
    "kron": torch.kron,
    "tensordot": lambda a, b, out: torch.tensordot(a, b, dims=1, out=out),
    "norm": lambda a, b, out: torch.norm(a, 2, dim=0, out=out),
    "multi_dot": lambda a, b, out: torch.linalg.multi_dot([a, b, a], out=out),
    "ndtr": lambda a, b, out: torch.special.ndtr(a, out=out),
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_composite_kernels(name: str) -> None:
    function = COMPOSITE[name]

    def program() -> list[torch.Tensor]:
        a, b = (torch.linspace(-1, 1, 64 * 64).view(64, 64) * k for k in (1, 3))
        out = torch.arange(3.0) * 1
        read = out * 2
        function(a, b, out=out)
        return [out + 0, read + 0]

    expected = program()
    with torch_lms.managed(limit="512MiB", device="cpu", min_block=1, stress="drop"):
        out = torch.arange(3.0) * 1
        assert state(out) == "dropped"
        found = program()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


ALL = """
import sys, warnings
sys.path[:0] = sys.argv[1].split(":")
warnings.filterwarnings("ignore")
import torch, torch_lms
from torch.testing._internal.common_methods_invocations import op_db
torch.set_num_threads(1)
count = 0
with torch_lms.managed(device="cpu", limit="512MiB", min_block=1, stress="drop"):
    for op in op_db:
        if not op.supports_out or torch.float32 not in op.dtypes:
            continue
        for sample, _ in zip(op.sample_inputs("cpu", torch.float32), range(6)):
            given = sample.input, *sample.args
            try:
                result = op(*given, **sample.kwargs)
            except Exception:
                continue
            if not isinstance(result, torch.Tensor) or result.numel() < 3:
                continue
            for lazy in (False, True):
                out = torch.ones(2, dtype=torch.complex64 if lazy else result.dtype) * 1
                print(op.name, lazy, flush=True)
                try:
                    op(*given, **sample.kwargs, out=out.conj().imag if lazy else out)
                    count += 1
                except RuntimeError:
                    pass
            break
print("ran", count)
"""


@pytest.mark.slow
def test_all_operators() -> None:
    """None of PyTorch's operators ends the process; what they compute is for OpInfo to say."""
    done = subprocess.run(
        [sys.executable, "-c", ALL, f"{HERE}:{HERE.parents[1] / 'python'}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"ended in {lines[-1:]}: {done.stderr[-1500:]}"
    assert int(lines[-1].removeprefix("ran ")) > 400


@pytest.mark.parametrize("slices", ["auto", "off"])
def test_what_a_kernel_has_made_of_it_may_leave(slices: str) -> None:
    """Nobody reads the results: they leave all the same."""
    with torch_lms.managed(limit="8MiB", device="cpu", min_block=4096, slices=slices):
        x = torch.ones(1 << 18)
        results = [torch.empty(0) for _ in range(20)]
        for number, result in enumerate(results):
            torch.add(x, number, out=result)
        joined = [torch.empty(0) for _ in range(8)]
        for result in joined:
            torch.cat([x, x], out=result)
        assert all(bool((result == 1 + k).all()) for k, result in enumerate(results))
        assert all(bool((result == 1).all()) for result in joined)
