"""Fingerprints of all parameters and buffers, to compare runs by more than their losses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

_CHUNK = 2**22
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Any odd factor will do: it has an inverse modulo 2^64.
_FACTOR = 6364136223846793005


def _sums(tensor: Tensor) -> Iterator[Tensor]:
    """For each stretch of elements: the sum, modulo 2^64, of their bits times their places. The
    factors are odd, so that no change of a single element goes unnoticed."""
    for flat in tensor.detach().reshape(-1).split(_CHUNK):
        words = flat.view(_WORDS[flat.element_size()]).to(torch.int64)
        places = torch.arange(len(words), device=words.device, dtype=torch.int64)
        yield (words * (places.mul_(2 * _FACTOR % 2**63).add_(_FACTOR))).sum()


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """A number, hexadecimal, that is another when any element of the parameters or buffers has
    other bits (when several have, but for chance); how tensors lie in memory does not matter. Of a
    tensor that is spread over ranks, this rank's part counts.

    Computed on the model's device, with some 100 MiB of scratch, and read by the host once.
    """
    digest, sums = hashlib.sha256(), []
    for name, whole in model.state_dict().items():
        tensor = whole.to_local() if hasattr(whole, "to_local") else whole
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sums += _sums(tensor)
    digest.update(repr(torch.stack(sums).tolist()).encode())
    return digest.hexdigest()[:16]
