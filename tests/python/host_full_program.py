"""Needs host memory for what cannot be computed again, where what can be has filled it. Prints how
many tensors have been dropped. ``test_host_full.py`` runs it: on the model of CUDA, where nothing
is computed (``counts``), and on a GPU."""

from __future__ import annotations

import sys

import torch

import torch_lms

MIB = 1 << 20
SIZE = 16 * MIB // 4


def given(values: range) -> list[torch.Tensor]:
    return [torch.full((SIZE,), float(i)).cuda() for i in values]


def send_all_away() -> None:
    torch.empty(13 * SIZE, device="cuda").zero_()


def main() -> None:
    torch_lms.enable(device="cuda", limit=220 * MIB, host_limit=200 * MIB)
    first = given(range(4))
    send_all_away()  # what is computed from now on can be computed again
    made = [change(x) for x in first for change in (torch.neg, torch.square)]
    send_all_away()
    states = [torch.ops.lms.state(x) for x in first + made]
    assert states == ["absent"] * 12, states
    second = given(range(4, 8))
    send_all_away()
    states = [torch.ops.lms.state(x) for x in made]
    assert states.count("dropped") >= 4, states
    assert [torch.ops.lms.state(x) for x in first + second] == ["absent"] * 8
    stats = torch_lms.memory_stats("cuda")
    assert stats["host.bytes.peak"] <= 200 * MIB, stats
    if sys.argv[1:] != ["counts"]:
        for i, x in enumerate(first + second):
            assert torch.equal(x.cpu(), torch.full((SIZE,), float(i)))
        for i, x in enumerate(made):
            value = float(i // 2)
            assert torch.equal(x.cpu(), torch.full((SIZE,), value**2 if i % 2 else -value))
    drops = stats["drops"]
    del first, made, second
    drops += once_it_has_been_full()
    print(drops)


def once_it_has_been_full() -> int:
    """What a step makes while there is still room can be dropped in the next one."""
    torch_lms.enable(device="cuda", limit=220 * MIB, host_limit=1000 * MIB)
    drops = torch_lms.memory_stats("cuda")["drops"]
    plain = given(range(20))
    send_all_away()
    unknown = [torch.neg(x) for x in plain[:4]]
    send_all_away()
    more = given(range(36))
    send_all_away()
    del more
    first_of_next = given(range(1))
    send_all_away()
    known = [torch.neg(x) for x in plain[:4]]
    send_all_away()
    more = given(range(36))
    send_all_away()
    states = [torch.ops.lms.state(x) for x in known]
    assert states.count("dropped") >= 2, states
    assert [torch.ops.lms.state(x) for x in unknown] == ["absent"] * 4
    if sys.argv[1:] != ["counts"]:
        for i, (one, other) in enumerate(zip(known, unknown, strict=True)):
            assert torch.equal(one.cpu(), torch.full((SIZE,), -float(i)))
            assert torch.equal(other.cpu(), torch.full((SIZE,), -float(i)))
    del first_of_next, more
    return torch_lms.memory_stats("cuda")["drops"] - drops


if __name__ == "__main__":
    main()
