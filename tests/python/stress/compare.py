"""Bit-for-bit comparison of results: NaN equals NaN, and -0.0 differs from 0.0."""

from __future__ import annotations

import struct
from typing import Any

import torch

Bits = dict[str, bytes]


def _dense_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    # A clone is made on purpose: it reads the bytes through an operator, as training does.
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1).cpu()
    if flat.numel() == 0:
        return b""
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _put(bits: Bits, path: str, tensor: torch.Tensor, what: str = "") -> None:
    head = f"{tensor.dtype} {tuple(tensor.shape)} {what}|".encode()
    bits[path] = head + _dense_bytes(tensor)


def _tensor_bits(bits: Bits, path: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        for index, part in enumerate(tensor.detach().unbind()):
            _put(bits, f"{path}[{index}]", part, "nested")
        return
    if tensor.is_quantized:
        _put(bits, f"{path}.int", tensor.int_repr(), "quantised")
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            bits[f"{path}.scale"] = struct.pack("<dq", tensor.q_scale(), tensor.q_zero_point())
        else:
            _put(bits, f"{path}.scales", tensor.q_per_channel_scales())
        return
    if tensor.layout == torch.sparse_coo:
        _put(bits, f"{path}.indices", tensor.detach()._indices(), "sparse")
        _put(bits, f"{path}.values", tensor.detach()._values(), "sparse")
        return
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        _put(bits, f"{path}.crow", tensor.detach().crow_indices(), "sparse")
        _put(bits, f"{path}.col", tensor.detach().col_indices(), "sparse")
        _put(bits, f"{path}.values", tensor.detach().values(), "sparse")
        return
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        _put(bits, f"{path}.ccol", tensor.detach().ccol_indices(), "sparse")
        _put(bits, f"{path}.row", tensor.detach().row_indices(), "sparse")
        _put(bits, f"{path}.values", tensor.detach().values(), "sparse")
        return
    _put(bits, path, tensor, str(tensor.stride()))


def bits_of(value: Any, path: str = "") -> Bits:
    """The bytes of every tensor and number in a nest of dicts, lists and tuples, by path."""
    bits: Bits = {}
    _walk(bits, path, value)
    return bits


def _walk(bits: Bits, path: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        _tensor_bits(bits, path, value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _walk(bits, f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, (list, tuple)):
        bits[f"{path}#"] = str(len(value)).encode()
        for index, item in enumerate(value):
            _walk(bits, f"{path}[{index}]", item)
    elif isinstance(value, float):
        bits[path] = struct.pack("<d", value)
    elif isinstance(value, complex):
        bits[path] = struct.pack("<dd", value.real, value.imag)
    else:
        bits[path] = repr(value).encode()


def differences(expected: Bits, actual: Bits) -> list[str]:
    """Paths that are missing on a side or whose bytes differ; empty when both are the same."""
    wrong = [f"{path}: only in one of the runs" for path in sorted(expected.keys() ^ actual.keys())]
    for path in expected.keys() & actual.keys():
        a, b = expected[path], actual[path]
        if a == b:
            continue
        if len(a) != len(b):
            wrong.append(f"{path}: {_head(a)} against {_head(b)}")
        else:
            count = sum(x != y for x, y in zip(a, b, strict=True))
            wrong.append(f"{path}: {count} of {len(a)} bytes differ ({_head(a)})")
    return sorted(wrong)


def _head(blob: bytes) -> str:
    head, bar, _ = blob.partition(b"|")
    return head.decode(errors="replace") if bar else repr(blob[:40])
