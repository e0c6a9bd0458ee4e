"""An operator in place whose own temporaries find no room, on the model of CUDA (costless).

It cannot be cut, as it must add in one order; all that it is called with fits.
"""

from __future__ import annotations

import extension
import torch

import torch_lms

MIB = 1 << 20
WIDTH = 4 * MIB  # float32: 16 MiB a row


def main() -> None:
    extension.load(extension.build(cuda=True, what="adding"))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch_lms.enable(device="cuda", limit="256MiB", plan="off")
    total = torch.empty(2, WIDTH, device="cuda")
    more = torch.empty(8, WIDTH, device="cuda")
    index = torch.zeros(8, dtype=torch.int64, device="cuda")
    before = torch_lms.memory_stats()
    for _ in range(2):
        total.index_add_(0, index, more)  # with its copy 288 MiB
    stats = torch_lms.memory_stats()
    assert stats["slices.in_place"] == before["slices.in_place"] + 2
    lent = stats["slices.in_place_bytes"] - before["slices.in_place_bytes"]
    assert lent == 2 * more.nbytes, "its copy is on the device"


if __name__ == "__main__":
    main()
