"""A convolution whose first algorithm wants more workspace than the limit, on the model of CUDA.

The model has no cuDNN: a kernel of the test's own stands in for one.
"""

from __future__ import annotations

import os

import extension
import pytest
import torch

import torch_lms

MIB = 1 << 20


def convolved(x: torch.Tensor) -> torch.Tensor:
    one, none = [1, 1, 1], [0, 0, 0]
    weight = torch.empty(x.shape[1], *(1, 1, 1, 1), device="cuda")
    return torch.ops.aten.conv_depthwise3d(x, weight, one, None, one, none, one)


def main() -> None:
    kernel = extension.load(extension.build(cuda=True, what="workspace"))
    large = 384 * MIB
    settings = {"device": "cuda", "limit": "256MiB", "plan": False, "other_algorithms": True}
    with torch_lms.managed(**settings):
        x = torch.empty(1, 64, 16, 128, 128, device="cuda").relu_()
        kernel.wants([large, 16 * MIB])
        for number in (1, 2):
            kernel.calls()
            y = convolved(x)
            assert torch.ops.lms.state(x) == "absent"
            stats = torch_lms.memory_stats("cuda")
            assert stats["slices.in_place"] == number
            assert stats["slices.in_place_bytes"] == number * (x.nbytes + large)
            assert stats["op_changes"] == kernel.algorithm() == 0
            assert stats["device.bytes.peak"] <= stats["limit"]
        assert kernel.calls() == 1, "the second call knows the way"
        # With no room for it below either, another algorithm.
        kernel.wants([1024 * MIB, 16 * MIB])
        del y
        torch_lms.enable(**settings, host_limit="512MiB")
        y = convolved(x)
        assert kernel.algorithm() == 1
        assert torch_lms.memory_stats("cuda")["op_changes"] == 1
        # With benchmark each algorithm would be timed, with its workspace over the link.
        torch.backends.cudnn.benchmark = True
        kernel.wants([large])
        with pytest.raises(RuntimeError, match="no algorithm was found"):
            convolved(x)
        torch.backends.cudnn.benchmark = False
        # What may be cuBLAS's, which keeps it for ever, would slow every later product down.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:128"  # 512 MiB
        torch_lms.enable(**settings | {"other_algorithms": False, "host_limit": "2GiB"})
        kernel.wants([large])
        with pytest.raises(torch.OutOfMemoryError, match="conv_depthwise3d needs at least"):
            convolved(x)
        del os.environ["CUBLAS_WORKSPACE_CONFIG"]
        y = convolved(x)
        assert kernel.algorithm() == 0
        del x, y
        torch.cuda.synchronize()
        assert torch_lms.memory_stats("cuda")["host.bytes.current"] == 0


if __name__ == "__main__":
    main()
