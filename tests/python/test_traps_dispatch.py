"""Traps: what PyTorch remembers of kernels while LMS's wrappers come and go."""

from __future__ import annotations

import pytest
import torch
from stress import harness
from stress.children import run_script
from stress.probe import state

import torch_lms

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


REPLACED = """
import torch, torch_lms

def turn():
    torch_lms.enable(device="cpu", limit="64MiB", min_block="4KiB", stress=True)
    x = torch.arange(4096.0).add_(1)
    assert torch.ops.lms.state(x) == "absent"
    page_ins = torch_lms.memory_stats("cpu")["page_ins"]
    y = torch.neg(x)
    assert torch_lms.memory_stats("cpu")["page_ins"] > page_ins, "not by LMS's wrapper"
    first = y[1].item()
    torch_lms.disable()
    return first

print(turn(), turn())
for factor in (7, 8):
    lib = torch.library.Library("aten", "IMPL")
    lib.impl("neg", lambda x: torch.mul(x, factor), "CPU")
    print(turn(), turn())
    lib._destroy()
    print(turn(), turn())
"""


def test_a_kernel_that_is_replaced_while_lms_is_off() -> None:
    """Wrappers are used again by the next enable(): they must call whatever is there by then."""
    harness.lms()
    done = run_script(REPLACED)
    printed = "-2.0 -2.0\n14.0 14.0\n-2.0 -2.0\n16.0 16.0\n-2.0 -2.0\n"
    assert (done.returncode, done.stdout) == (0, printed), done.stderr[-2000:]


ON_AND_OFF = """
import torch, torch_lms

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def turns(count):
    for _ in range(count):
        torch_lms.enable(device="cpu", limit="64MiB", plan_cache="off")
        torch_lms.disable()
    return resident()

first = turns(5)
print((turns(20) - first) / 20 / 2**20)
"""


def test_enable_and_disable_leave_little_behind() -> None:
    """A wrapper for every operator that is left behind is 6 MiB each time."""
    harness.lms()
    done = run_script(ON_AND_OFF)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 2


def test_operators_defined_anew() -> None:
    """As a notebook does whose cell runs again: the newer kernel is wrapped as well."""
    found = []

    def define() -> None:
        @torch.library.custom_op("lms_test::again", mutates_args=())
        def again(x: torch.Tensor) -> torch.Tensor:
            found.append(state(x))
            return x + len(found)

    with torch_lms.managed(device="cpu", limit="64MiB", min_block="4KiB", stress=True):
        x = torch.zeros(4096).add_(1)
        for times in (1, 2, 3):
            define()
            x.neg()  # whatever runs sees that there are new operators
            assert state(x) == "absent"
            assert torch.ops.lms_test.again(x)[0] == 1 + times
    assert found == ["resident"] * 3
