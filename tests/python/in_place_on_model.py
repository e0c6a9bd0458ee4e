"""Operators in place on the model of CUDA: what is where, as far as the host sees.

``test_slices_in_place.py`` runs it, with the model preloaded and costless.
"""

from __future__ import annotations

import torch

import torch_lms


def count() -> int:
    """Of the operators that have worked in place."""
    stats = torch_lms.memory_stats("cuda")
    assert stats["device.bytes.peak"] <= stats["limit"]
    return stats["slices.in_place"]


settings = {
    "device": "cuda",
    "limit": "200MiB",
    "host_limit": "1GiB",
    "plan": False,
    "slices": "all",
}
with torch_lms.managed(**settings), torch.backends.cudnn.flags(enabled=False):
    a, b = torch.empty(4096, 2048, device="cuda").relu_(), torch.empty(2048, 8192, device="cuda")
    for number in range(3):
        y = a @ b
        assert torch.ops.lms.state(y) == "absent"
        assert torch.ops.lms.state(a) == torch.ops.lms.state(b) == "resident"
        assert count() == number + 1
    del a, b, y
    x = torch.empty(8, 16, 512, 512, device="cuda").requires_grad_()  # 128 MiB
    norm = torch.nn.BatchNorm2d(16).cuda()
    for _ in range(2):
        before, retries = count(), torch_lms.memory_stats("cuda")["op_retries"]
        y = norm(x)
        assert torch.ops.lms.state(y) == "absent"
        assert torch_lms.memory_stats("cuda")["op_retries"] == retries, "it cannot be run again"
        assert count() == before + 1
        y.sum().backward()
        assert torch.ops.lms.state(x.grad) == "absent"
        assert count() == before + 2
        x.grad = None
    del y
    before = count()
    y, mask = torch.native_dropout(x, 0.1, True)
    assert torch.ops.lms.state(y) == torch.ops.lms.state(mask) == "absent"
    assert count() == before + 1
    del y, mask, norm
    before = count()
    y = x.detach().view(2048, -1).t().contiguous()  # cut in no way, and a kernel of all backends
    assert torch.ops.lms.state(y) == "absent"
    assert count() == before + 1
    del x, y
    before = count()
    x, grid = torch.zeros(1, 1, 4096, 8192).cuda(), torch.zeros(1, 4096, 3072, 2).cuda()
    y = torch.nn.functional.grid_sample(x, grid, align_corners=False)
    assert torch.ops.lms.state(x) == "absent"
    assert torch.ops.lms.state(grid) == torch.ops.lms.state(y) == "resident", "only operands"
    assert count() == before + 1
    del x, grid, y
    before = count()
    x, y = torch.zeros(4096, 8192).cuda(), torch.zeros(4096, 6144).cuda()
    x.index_add_(1, torch.arange(6144).cuda(), y)
    assert torch.ops.lms.state(y) == "absent"
    assert torch.ops.lms.state(x) == "resident", "its kernel adds to it by atomic operations"
    assert count() == before + 1
    del x, y
    torch.cuda.synchronize()
    assert torch_lms.memory_stats("cuda")["host.bytes.current"] == 0
