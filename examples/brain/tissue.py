"""The demo's data: a T1 image of the head's inside and, for every voxel, which tissue it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from nifti import read_nifti

DATA = Path(__file__).resolve().parent / "data"
CLASSES = ("background", "fluid/other", "grey matter", "white matter")
# x, y, z. A slab of whole axial slices through the ventricles, every side a multiple of 8.
FULL = (152, 184, 48)
_Z_CENTRE = 78


@dataclass(frozen=True)
class Brain:
    """`image[x, y, z]`: mean 0 and deviation 1 inside the brain; `labels`: indices of CLASSES."""

    image: np.ndarray
    labels: np.ndarray


def _file(kind: str) -> Path:
    return DATA / f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"


def _window(inside: np.ndarray, shape: tuple[int, int, int]) -> tuple[slice, slice, slice]:
    """A box of `shape`, centred on the brain in x and y and on the slab's own centre in z."""
    box = []
    for axis, size in enumerate(shape):
        if size > inside.shape[axis]:
            raise ValueError(f"a window of {shape} does not fit into an image of {inside.shape}")
        hit = np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))
        centre = _Z_CENTRE if axis == 2 else (int(hit[0]) + int(hit[-1]) + 1) // 2
        start = min(max(centre - size // 2, 0), inside.shape[axis] - size)
        box.append(slice(start, start + size))
    return tuple(box)


def load_brain(shape: tuple[int, int, int] = FULL) -> Brain:
    """The T1 image and its tissue labels, cropped to `shape`.

    Inside the brain (where the skull-stripped T1 is not 0), a voxel belongs to the most probable of
    grey matter, white matter and the rest; the maps give the first two, the rest is what they
    leave.
    """
    t1, grey, white = (read_nifti(_file(kind)).voxels for kind in ("t1", "gm", "wm"))
    if not t1.shape == grey.shape == white.shape:
        raise ValueError(f"the images differ in shape: {t1.shape}, {grey.shape}, {white.shape}")
    box = _window(t1 > 0, shape)
    t1, grey, white = (a[box].astype(np.float32) for a in (t1, grey, white))

    inside = t1 > 0
    rest = 255.0 - grey - white
    labels = np.where(inside, 1 + np.argmax(np.stack([rest, grey, white]), axis=0), 0)
    image = (t1 - t1[inside].mean()) / t1[inside].std()
    return Brain(image.astype(np.float32), labels.astype(np.uint8))
