"""The comparison itself: it must see what it is there to see."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from stress import harness
from stress.compare import bits_of, differences
from stress.programs import PROGRAMS

pytestmark = pytest.mark.pinned


def _differ(a: object, b: object) -> bool:
    return bool(differences(bits_of(a), bits_of(b)))


def test_one_bit_is_seen() -> None:
    a = torch.zeros(1000)
    b = a.clone()
    b.view(torch.int32)[777] = 1
    assert _differ({"x": [a]}, {"x": [b]})
    assert not _differ({"x": [a]}, {"x": [a.clone()]})


def test_nan_and_signed_zero() -> None:
    a = torch.tensor([math.nan, 0.0])
    assert not _differ(a, a.clone())
    assert _differ(a, torch.tensor([math.nan, -0.0]))
    assert _differ(0.0, -0.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.reshape(2, 8),
        lambda x: [x],
        lambda x: {"x": x},
        lambda x: x[:3],
    ],
)
def test_kind_and_shape_are_seen(change: object) -> None:
    x = torch.arange(16.0).reshape(4, 4)
    assert _differ(x, change(x))  # type: ignore[operator]


def test_sparse_quantised_nested_and_complex() -> None:
    x = torch.eye(4)
    y = x.clone()
    y[3, 3] = 2
    for make in (
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        lambda t: torch.nested.nested_tensor([t, t[:2]]),
        lambda t: torch.complex(t, t).conj(),
    ):
        assert _differ(make(x), make(y))
        assert not _differ(make(x), make(x.clone()))


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("4096", 4096, 4097),
        ("4,096 bytes", 4096, 4097),
        ("1.5 MiB", 3 << 19, (3 << 19) + (1 << 20) // 10 + 1),
        ("12GiB", 12 << 30, 13 << 30 | 1),
    ],
)
def test_bytes_in_messages(text: str, least: int, most: int) -> None:
    assert least <= harness.parse_bytes(text) <= most


def test_limit_in_message() -> None:
    error = RuntimeError("aten::mm needs 3 MiB; the smallest workable limit is 5.25 MiB.")
    assert (21 << 18) <= harness.smallest_workable_limit(error) <= (22 << 18)
    error = RuntimeError("the smallest limit that could work is 5.25 MiB (5505031 bytes). More")
    assert harness.smallest_workable_limit(error) == 5505031


@pytest.mark.parametrize("differs", ["varies", "fixed"])
def test_only_what_plain_runs_leave_to_chance_is_passed_over(differs: str) -> None:
    """Of a GPU's program, of which one result is another now and then."""
    runs = itertools.count()

    def run(device: str) -> dict[str, torch.Tensor]:
        return {"fixed": torch.zeros(3), "varies": torch.full((3,), float(next(runs) == 5))}

    program = SimpleNamespace(name="a program", run=run)
    expected = {"fixed": torch.zeros(3), "varies": torch.zeros(3)}
    bits = (bits_of(expected), bits_of(expected | {differs: torch.ones(3)}))
    outcome = pytest.skip.Exception if differs == "varies" else AssertionError
    with pytest.raises(outcome, match=differs):
        harness.check_same_as_plain(program, "cuda", *bits, "managed")
    with pytest.raises(AssertionError, match="1 of 2 differ"):
        harness.check_same_as_plain(program, "cpu", *bits, "managed")


def test_the_list_is_complete() -> None:
    """The programs that the architecture names, by the words of its list."""
    for word in (
        "resnet18_fp32",
        "bf16",
        "fp16_grad_scaler",
        "transformer_dropout_fused_adamw",
        "flash_attention",
        "foreach",
        "lstm",
        "unet3d",
        "embedding",
        "compiled_mlp",
        "compiled_resnet18",
        "triton",
        "side_streams",
        "double_backward",
        "checkpointing",
        "save_load",
        "deep_copy",
        "dlpack",
        "sort",
        "unique",
        "nms",
    ):
        assert any(word in name for name in PROGRAMS), f"no program is about {word}"
