"""Frees three of four small tensors in host memory, and has a large one leave: what is free would
hold it, but not in one piece. Prints how much moved. ``test_host_pieces.py`` runs it."""

from __future__ import annotations

import torch

import torch_lms

MIB = 1 << 20
FLOATS = MIB // 4  # in a MiB
SMALL = 110
LARGE = 45


def main() -> None:
    torch_lms.enable(device="cuda", limit=80 * MIB, host_limit=128 * MIB, plan="off")
    small = [torch.full((FLOATS,), float(i)).cuda() for i in range(SMALL)]
    torch.empty(76 * FLOATS, device="cuda")  # they leave
    stats = torch_lms.memory_stats("cuda")
    assert stats["host.bytes.current"] >= 105 * MIB, stats
    small = small[::4]
    first = torch.arange(LARGE * FLOATS, dtype=torch.float32)
    large = first.cuda()
    second = torch.full((LARGE * FLOATS,), 7.0).cuda()
    # Some are used again, some die, where they lie now.
    assert torch.equal(small[1].cpu(), torch.full((FLOATS,), 4.0))
    del small[2]
    third = torch.full((LARGE * FLOATS,), 8.0)
    assert torch.equal(second.cpu(), torch.full((LARGE * FLOATS,), 7.0))
    del second
    second = third.cuda()
    assert torch.equal(large.cpu(), first)
    assert torch.equal(second.cpu(), third)
    for tensor in small:
        value = tensor.cpu()
        assert torch.equal(value, torch.full((FLOATS,), value[0].item())), value
    assert [int(tensor.cpu()[0]) for tensor in small] == [
        i for i in range(0, SMALL, 4) if i != 8
    ]
    print(torch_lms.memory_stats("cuda")["host.moved"] // MIB)


if __name__ == "__main__":
    main()
