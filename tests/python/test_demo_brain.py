"""The demo's parts: NIfTI reader, labels, network, checks. None of them needs torch_lms."""

from __future__ import annotations

import copy
import gzip
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "brain"))

from meter import PeakMeter  # noqa: E402
from nifti import NiftiError, read_nifti  # noqa: E402
from tissue import CLASSES, DATA, FULL, load_brain  # noqa: E402
from unet import UNet3d, parameter_count  # noqa: E402

import report  # noqa: E402

pytestmark = pytest.mark.pinned

CODES = {"u1": 2, "i2": 4, "i4": 8, "f4": 16, "f8": 64}


def nifti_bytes(voxels: np.ndarray, order="<", slope=0.0, inter=0.0, code=None) -> bytes:
    """A NIfTI-1 file in memory, written by the fields of the standard."""
    header = bytearray(352)
    struct.pack_into(order + "i", header, 0, 348)
    sizes = [voxels.ndim, *voxels.shape] + [1] * (7 - voxels.ndim)
    struct.pack_into(order + "8h", header, 40, *sizes)
    struct.pack_into(order + "h", header, 70, CODES[voxels.dtype.str[1:]] if code is None else code)
    struct.pack_into(order + "8f", header, 76, 1, 0.5, 1, 2, 1, 1, 1, 1)
    struct.pack_into(order + "3f", header, 108, 352, slope, inter)
    header[344:348] = b"n+1\0"
    return bytes(header) + voxels.astype(voxels.dtype.newbyteorder(order)).tobytes(order="F")


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", sorted(CODES))
def test_reader_gives_back_what_was_written(tmp_path, dtype, order):
    voxels = np.arange(2 * 3 * 5).reshape(2, 3, 5).astype(dtype)
    path = tmp_path / "a.nii.gz"
    path.write_bytes(gzip.compress(nifti_bytes(voxels, order)))
    volume = read_nifti(path)
    assert volume.voxels.dtype == np.dtype(dtype)
    assert np.array_equal(volume.voxels, voxels)
    assert volume.voxel_mm == (0.5, 1, 2)


@pytest.mark.parametrize(
    ("slope", "inter", "factor", "offset"),
    [(2, -3, 2, -3), (0, 7, 1, 0), (1, 0, 1, 0), (1, 4, 1, 4)],
)
def test_reader_scales(tmp_path, slope, inter, factor, offset):
    voxels = np.arange(6, dtype="u1").reshape(1, 2, 3)
    path = tmp_path / "a.nii"
    path.write_bytes(nifti_bytes(voxels, slope=slope, inter=inter))
    assert np.array_equal(read_nifti(path).voxels, voxels.astype("f4") * factor + offset)


def test_reader_names_file_and_reason(tmp_path):
    good = nifti_bytes(np.zeros((2, 2, 2), "u1"))
    no_magic = good[:344] + b"ni1\0" + good[348:]
    for name, raw, reason in (
        ("short.nii", good[:100], "shorter than"),
        ("text.nii", b"x" * 400, "not a NIfTI-1 header"),
        ("magic.nii", no_magic, "magic"),
        ("cut.nii", good[:-1], "360 needed"),
        ("type.nii", nifti_bytes(np.zeros((2, 2, 2), "u1"), code=1792), "datatype 1792"),
        ("gzip.nii.gz", gzip.compress(good)[:-20], "gzip"),
        ("rank.nii", good[:40] + struct.pack("<h", 9) + good[42:], "dimensions"),
    ):
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(NiftiError, match=reason) as caught:
            read_nifti(path)
        assert name in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_nifti(tmp_path / "none.nii")


def test_real_images_are_what_the_readme_says():
    for kind in ("t1", "gm", "wm"):
        volume = read_nifti(DATA / f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz")
        assert volume.voxels.shape == (197, 233, 189)
        assert volume.voxels.dtype == np.uint8
        assert (volume.voxels.min(), volume.voxels.max()) == (0, 255)
        assert volume.voxel_mm == (1, 1, 1)


def test_labels_are_sane():
    brain = load_brain()
    assert brain.image.shape == brain.labels.shape == FULL
    inside = brain.labels > 0
    assert abs(brain.image[inside].mean()) < 1e-3
    assert abs(brain.image[inside].std() - 1) < 1e-3
    share = np.bincount(brain.labels.ravel(), minlength=len(CLASSES)) / brain.labels.size
    assert len(share) == len(CLASSES)
    assert 0.2 < share[0] < 0.4
    assert 0.02 < share[1] < 0.1
    assert 0.3 < share[2] < 0.45
    assert 0.2 < share[3] < 0.35
    # On T1, fluid is darker than grey matter, and grey matter darker than white matter.
    fluid, grey, white = (brain.image[brain.labels == index].mean() for index in (1, 2, 3))
    assert fluid < grey < white
    # The atlas is symmetric about a plane of voxels, and the window is centred on it.
    half = brain.labels[1:]
    assert (half == half[::-1]).mean() > 0.99


def test_window_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="does not fit"):
        load_brain((200, 184, 48))


def test_network_shape_size_and_gradients():
    torch.manual_seed(0)
    model = UNet3d(len(CLASSES))
    assert parameter_count(model) == 408_740
    scores = model(torch.randn(1, 1, 16, 24, 8))
    assert scores.shape == (1, len(CLASSES), 16, 24, 8)
    scores.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_meter_sees_memory_that_came_and_went():
    meter = PeakMeter(torch.device("cpu"))
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert block[-1] == 1
    time.sleep(0.2)  # it samples: on a busy machine what lasts a moment is missed
    del block
    assert 60 * 2**20 < meter.stop() < 160 * 2**20


def test_dice():
    labels = np.array([0, 0, 1, 1, 2, 3])
    assert report.dice(labels, labels) == [1, 1, 1, 1]
    guess = np.array([0, 1, 1, 1, 2, 2])
    assert report.dice(labels, guess) == pytest.approx([2 / 3, 4 / 5, 2 / 3, 0])


@pytest.fixture
def runs():
    plain = {
        "peak": 900,
        "losses": [(1.5).hex(), (0.5).hex(), (0.25).hex()],
        "seconds": [3.0, 1.0, 1.0],
        "weights": "a" * 64,
        "prediction": "b" * 64,
        "lms_imported": False,
        "stats": {},
    }
    moved = {"bytes_out": 3 * 2**20, "bytes_in": 6 * 2**20, "device.bytes.peak": 250}
    lms = copy.deepcopy(plain) | {"peak": 290, "limit": "243", "stats": moved, "lms_imported": True}
    return plain, lms


def test_equal_runs_pass(runs):
    assert report.problems(*runs) == []
    text = report.table(*runs, [1.0] * 4, every_step=True)
    assert max(map(len, text.splitlines())) <= 80
    assert "32.2%" in text
    assert "0x1.0000000000000p-1" in text
    assert "≠" not in text


def test_one_bit_fails(runs):
    plain, lms = runs
    value = np.nextafter(np.float64(0.5), 1)
    lms["losses"][1] = float(value).hex()
    (problem,) = report.problems(plain, lms)
    assert "step 2" in problem
    assert "≠" in report.table(plain, lms, [1.0] * 4, every_step=False)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("weights", "c" * 64, "weights differ"),
        ("prediction", "c" * 64, "prediction differ"),
        ("peak", 300, "not below a third"),
        ("stats", {}, "nothing was moved"),
        ("losses", [(1.5).hex()], "steps were run"),
    ],
)
def test_each_check_can_fail(runs, key, value, words):
    plain, lms = runs
    lms[key] = value
    (problem,) = report.problems(plain, lms)
    assert words in problem


def test_plain_run_must_be_plain(runs):
    runs[0]["lms_imported"] = True
    (problem,) = report.problems(*runs)
    assert "not plain" in problem
