"""Two managed devices, of which one is let go: what belongs to none of them goes on.

``test_api_extensions_cuda.py`` runs it on the model of CUDA.
"""

from __future__ import annotations

import sys

import extension
import torch

import torch_lms


def main() -> None:
    sys.modules["lms_test_raw"] = extension.load(extension.build(cuda=False))
    twice = torch.ops.lms_test_raw.twice
    x = torch.arange(5000.0)
    for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
        torch_lms.enable(limit="256MiB", device=first, plan="off")
        torch_lms.enable(limit="256MiB", device=second, plan="off")
        assert torch.equal(twice(x), x)
        torch_lms.disable(first)
        assert torch.equal(twice(x), x)
        torch_lms.disable(second)
        assert torch.equal(twice(x), x)


if __name__ == "__main__":
    main()
