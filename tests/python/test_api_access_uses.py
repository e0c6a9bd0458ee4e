"""What PyTorch and other libraries do with addresses: who keeps a block, and who does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.export.pt2_archive import _package

import torch_lms

N = 5000
KIB = 1 << 10


def numbers(value: int = 1) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) * value


def state(tensor: torch.Tensor) -> str:
    return torch.ops.lms.state(tensor)


def functions(module: str, source: str) -> ModuleType:
    """A stand-in for a module of a library that need not be installed."""
    made = ModuleType(module)
    exec(source, vars(made))
    return made


# The ways of safetensors 0.4 (_tobytes) and 0.8 (_to_ndarray), and of transformers.
SAFETENSORS = """
import ctypes
def storage_ptr(tensor):
    return tensor.untyped_storage().data_ptr()
def _end_ptr(tensor):
    return tensor.view(-1)[-1].data_ptr() + tensor.element_size()
def _filter_shared_not_shared(tensors):
    return sorted((tensor.data_ptr(), _end_ptr(tensor)) for tensor in tensors)
def _to_ndarray(tensor):
    return (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
def _tobytes(tensor):
    return bytes((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
"""
TRANSFORMERS = """
def id_tensor_storage(tensor):
    return tensor.device, tensor.storage().data_ptr(), tensor.untyped_storage().nbytes()
"""


@pytest.fixture(params=[True, "drop"], ids=["absent", "dropped"])
def away(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything leaves after every operator."""
    with torch_lms.managed(limit="256MiB", min_block=1, device="cpu", stress=request.param):
        yield "dropped" if request.param == "drop" else "absent"


@pytest.mark.filterwarnings("ignore")
def test_comparers_leave_blocks_where_they_are(away: str) -> None:
    safetensors = functions("safetensors.torch", SAFETENSORS)
    transformers = functions("transformers.pytorch_utils", TRANSFORMERS)
    for compare in (
        safetensors.storage_ptr,
        safetensors._end_ptr,
        lambda x: safetensors._filter_shared_not_shared([x]),
        transformers.id_tensor_storage,
        lambda x: torch._inductor.utils.is_same_tensor(x, x[1:]),
        lambda x: torch.autograd.graph._get_tid(x),
        lambda x: torch.autograd.graph._get_sid(x),
        lambda x: torch.distributed.utils._data_ptr_allocated(x),
    ):
        x = numbers()
        assert state(x) == away
        first = compare(x)
        assert state(x) == away
        torch_lms.disable()  # on the CPU addresses never change
        assert compare(x) == first
        torch_lms.enable(
            limit="256MiB", min_block=1, device="cpu", stress="drop" if away == "dropped" else True
        )


def test_readers_find_the_bytes(away: str) -> None:
    safetensors = functions("safetensors.torch", SAFETENSORS)
    expected = bytes((numbers() * 1).numpy())
    for read in (
        safetensors._to_ndarray,
        safetensors._tobytes,
        _package._get_raw_tensor_bytes,
    ):
        x = numbers()
        assert state(x) == away
        found = read(x)
        assert state(x) == "absent"
        y = numbers(2) + 1  # others come and go, and this stays readable
        assert bytes(found) == expected
        assert state(x) != "kept" and state(y) == away
        x.mul_(2)
        assert torch.equal(x, numbers(2))


def test_a_reader_of_small_tensors(away: str) -> None:
    """What is too small to be a block needs nothing."""
    safetensors = functions("safetensors.torch", SAFETENSORS)
    torch_lms.disable()
    torch_lms.enable(limit="256MiB", min_block="4KiB", device="cpu", stress=True)
    assert safetensors._tobytes(torch.ones(3)) == bytes(torch.ones(3).numpy())


def test_anybody_else_keeps() -> None:
    with torch_lms.managed(limit="256MiB", min_block=1, device="cpu", stress=True):
        for module in ("safetensors_like.torch", "__main__"):
            x = numbers()
            functions(module, SAFETENSORS).storage_ptr(x)
            assert state(x) == "kept"


def weights(count: int) -> dict[str, torch.Tensor]:
    return {str(i): torch.full((64, KIB), float(i)) * 1 for i in range(count)}


@pytest.fixture
def tight() -> Iterator[None]:
    """Room for four of weights()."""
    with torch_lms.managed(limit="1100KiB", min_block="64KiB", device="cpu"):
        yield


@pytest.mark.usefixtures("tight")
def test_safetensors_saves_more_than_there_is_room_for(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    model = torch.nn.ParameterDict({k: torch.nn.Parameter(w) for k, w in weights(12).items()})
    model.tied = model["3"]
    library.save_model(model, str(tmp_path / "model"))
    library.save_file(dict(model.state_dict()) | {"tied": torch.ones(1)}, str(tmp_path / "file"))
    assert torch_lms.memory_stats()["kept.bytes.current"] == 0
    for name, weight in model.items():
        assert torch.equal(weight, torch.full((64, KIB), float(name.replace("tied", "3"))))
    torch_lms.disable()
    for name in ("model", "file"):
        loaded = library.load_file(str(tmp_path / name))
        assert all(torch.equal(loaded[k], w * 1) for k, w in weights(12).items())


@pytest.mark.usefixtures("tight")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["now", "later"])
def test_distributed_checkpoint_of_more_than_there_is_room_for(tmp_path: Path, how: str) -> None:
    from torch.distributed import checkpoint

    made = weights(12)
    if how == "now":
        checkpoint.save(made, checkpoint_id=tmp_path / "now", no_dist=True)
    else:
        checkpoint.async_save(made, checkpoint_id=tmp_path / "later", no_dist=True).result()
    assert all(state(weight) != "kept" for weight in made.values())
    torch_lms.disable()
    back = {key: torch.zeros_like(weight) for key, weight in made.items()}
    checkpoint.load(back, checkpoint_id=tmp_path / how, no_dist=True)
    assert all(torch.equal(back[key], weight) for key, weight in made.items())


def test_mutation_on_saved_tensors(away: str) -> None:
    def run() -> list[torch.Tensor]:
        x = numbers().requires_grad_()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            y = x * 1
            z = y.sin()
            y.mul_(2)
            (z * y).sum().backward()
        assert not torch_lms.is_enabled("cpu") or state(y) != "kept"
        return [x.grad, y.detach()]

    got = run()
    torch_lms.disable()
    assert all(torch.equal(a, b) for a, b in zip(run(), got, strict=True))
