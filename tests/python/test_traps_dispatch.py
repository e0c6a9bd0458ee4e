"""Traps: what PyTorch remembers of kernels while LMS's wrappers come and go."""

from __future__ import annotations

import pytest
from stress import harness
from stress.children import run_script

# Each turn resolves kernels in Python, as torch.compile does when it traces. A kernel remembered
# from before a switch crashes the process, or goes past LMS: so a process, and a count.
TURNS = """
import sys
import torch, torch_lms
from torch._dispatch.python import enable_python_dispatcher

def turn():
    x = torch.arange(4096.0)
    with enable_python_dispatcher():
        return torch.equal(torch.clone(x), x)

def on():
    torch_lms.enable(device="cpu", limit="64MiB", min_block="4KiB", stress=True)

if sys.argv[1] == "plain first":
    assert turn()
for _ in range(2):
    on()
    x = torch.arange(4096.0).add_(1)
    assert torch.ops.lms.state(x) == "absent"
    page_ins = torch_lms.memory_stats("cpu")["page_ins"]
    with enable_python_dispatcher():
        y = torch.clone(x)
    assert torch_lms.memory_stats("cpu")["page_ins"] > page_ins, "not by LMS's wrapper"
    assert turn()
    torch_lms.disable()
    assert turn()
print("done")
"""


@pytest.mark.parametrize("order", ["plain first", "managed first"])
def test_python_dispatcher_before_while_and_after(order: str) -> None:
    """torch.clone has no CPU kernel but LMS's wrapper: remembered, it must be forgotten again."""
    harness.lms()
    done = run_script(TURNS, order)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
