"""A reader for single-file NIfTI-1 images (`.nii`, `.nii.gz`): voxels as numpy, sizes in mm."""

from __future__ import annotations

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_HEADER_BYTES = 348
_GZIP_MAGIC = b"\x1f\x8b"
# NIfTI-1 datatype code -> numpy type, without byte order.
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}


class NiftiError(ValueError):
    """Not a NIfTI-1 image that this reader understands; the message names file and reason."""


@dataclass(frozen=True)
class Volume:
    """An image: `voxels[x, y, z, ...]` as stored or, where the header scales, as float32."""

    voxels: np.ndarray
    voxel_mm: tuple[float, ...]


def read_nifti(path: str | Path) -> Volume:
    """Read one image.

    Applies `scl_slope` and `scl_inter` where they change anything (the result is then float32).
    Raises `NiftiError` for anything malformed or not supported, `OSError` if it cannot be read.
    """
    path = Path(path)
    raw = path.read_bytes()
    if raw[:2] == _GZIP_MAGIC:
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise NiftiError(f"{path}: damaged gzip stream ({error})") from error
    if len(raw) < _HEADER_BYTES:
        raise NiftiError(f"{path}: {len(raw)} bytes, shorter than a NIfTI-1 header")

    order = next((o for o in "<>" if struct.unpack_from(o + "i", raw)[0] == _HEADER_BYTES), None)
    if order is None:
        raise NiftiError(f"{path}: not a NIfTI-1 header (its first field must be {_HEADER_BYTES})")
    if raw[344:348] != b"n+1\0":
        raise NiftiError(f"{path}: magic {raw[344:348]!r}, expected b'n+1\\x00' (one file)")

    rank, *sizes = struct.unpack_from(order + "8h", raw, 40)
    if not 1 <= rank <= 7 or min(sizes[:rank]) < 1:
        raise NiftiError(f"{path}: impossible dimensions {[rank, *sizes]}")
    shape = tuple(sizes[:rank])
    (code,) = struct.unpack_from(order + "h", raw, 70)
    if code not in _TYPES:
        raise NiftiError(f"{path}: datatype {code} is not supported, only {sorted(_TYPES)}")
    voxel_mm = struct.unpack_from(order + "7f", raw, 80)[:rank]
    offset, slope, inter = struct.unpack_from(order + "3f", raw, 108)

    dtype = np.dtype(order + _TYPES[code])
    count = math.prod(shape)
    need = int(offset) + dtype.itemsize * count
    if offset < _HEADER_BYTES or len(raw) < need:
        raise NiftiError(
            f"{path}: {len(raw)} bytes, {need} needed for {shape} of {dtype} at {offset:g}"
        )
    voxels = np.frombuffer(raw, dtype, count, int(offset)).reshape(shape, order="F")
    # The standard: a slope of 0 means "no scaling".
    if slope not in (0.0, 1.0) or (slope == 1.0 and inter != 0.0):
        voxels = voxels.astype(np.float32) * np.float32(slope) + np.float32(inter)
    return Volume(voxels.astype(voxels.dtype.newbyteorder("=")), voxel_mm)
