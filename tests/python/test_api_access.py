"""Raw access from Python gives the right bytes while everything is evicted after every operator."""

from __future__ import annotations

import copy
import ctypes
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from stress.probe import state

import torch_lms
from torch_lms import _access
from torch_lms._patches import Patches, _PostImport

N = 5000


def absent(scale: int = 2) -> torch.Tensor:
    """0, 2, 4, ... in a block that is out when this returns."""
    tensor = torch.arange(N, dtype=torch.int32)
    tensor.mul_(scale)
    assert torch.ops.lms.state(tensor) == "absent"
    return tensor


def expected(scale: int = 2) -> np.ndarray:
    return np.arange(N, dtype=np.int32) * scale


def cycle(tensor: torch.Tensor) -> torch.Tensor:
    """Operators in which a block that may leave would leave and come back, twice."""
    tensor.add_(0)
    return tensor.add_(0)


@pytest.mark.usefixtures("stress")
class TestEscapes:
    """The pointer gets out: reads and writes through it are seen for as long as the block lives."""

    def check(self, tensor: torch.Tensor, view: np.ndarray) -> None:
        assert np.array_equal(view, expected())
        assert state(tensor) != "absent"
        view[7] = -1  # a write that no hook sees
        cycle(tensor)
        assert tensor[7].item() == -1
        tensor[8] = -2
        assert view[8] == -2
        assert not torch_lms.reclaim_inactive()
        assert view[8] == -2 and tensor[7].item() == -1

    def test_numpy(self) -> None:
        tensor = absent()
        self.check(tensor, tensor.numpy())

    def test_asarray(self) -> None:
        tensor = absent()
        self.check(tensor, np.asarray(tensor))

    def test_dlpack(self) -> None:
        tensor = absent()
        self.check(tensor, np.from_dlpack(tensor))

    def test_to_dlpack(self) -> None:
        tensor = absent()
        other = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))
        self.check(tensor, other.numpy())

    @pytest.mark.parametrize(
        "pointer",
        [
            lambda t: t.data_ptr(),
            lambda t: t.untyped_storage().data_ptr(),
            lambda t: t._typed_storage()._data_ptr(),
        ],
    )
    def test_pointer(self, pointer: Callable[[torch.Tensor], int]) -> None:
        tensor = absent()
        array = (ctypes.c_int32 * N).from_address(pointer(tensor))
        self.check(tensor, np.frombuffer(array, dtype=np.int32))

    def test_slice(self) -> None:
        tensor = absent()
        part = tensor.untyped_storage()[0 : tensor.nbytes]
        self.check(tensor, torch.empty(0, dtype=torch.int32).set_(part).numpy())

    @pytest.mark.parametrize("escape", [lambda t: t.numpy(), np.from_dlpack])
    def test_within_a_scope(self, escape: Callable[[torch.Tensor], np.ndarray]) -> None:
        tensor = absent()
        with _access.scope():
            array = escape(tensor)  # outlives the scope
        self.check(tensor, array)

    def test_parameter_and_view(self) -> None:
        parameter = torch.nn.Parameter(torch.arange(float(N)).mul_(2))
        assert state(parameter) == "absent"
        assert np.array_equal(parameter[1:].detach().numpy(), np.arange(1, N) * 2.0)
        assert state(parameter) == "kept"

    def test_clean_block_written_raw(self) -> None:
        tensor = absent()
        tensor.sum()  # in and out again, unchanged: its copy below is valid
        address = tensor.data_ptr()
        ctypes.memset(address, 0, tensor.nbytes)
        cycle(tensor)
        assert tensor.sum().item() == 0

    def test_share_memory(self) -> None:
        tensor = absent()
        tensor.share_memory_()
        assert tensor.is_shared()
        assert np.array_equal(tensor.numpy(), expected())
        assert torch.equal(cycle(tensor), torch.arange(N, dtype=torch.int32) * 2)

    def test_sent_to_a_process(self) -> None:
        tensor = absent()
        queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
        queue.put(tensor)
        assert np.array_equal(queue.get().numpy(), expected())


@pytest.mark.usefixtures("stress")
class TestBorrows:
    """The call is done with the pointer when it returns: the block may leave again."""

    def check(self, tensor: torch.Tensor) -> None:
        cycle(tensor)
        assert state(tensor) == "absent"

    def test_apply(self) -> None:
        tensor = absent()
        tensor.sum()
        tensor.apply_(lambda value: value + 1)
        assert torch.equal(tensor, torch.arange(N, dtype=torch.int32) * 2 + 1)
        self.check(tensor)

    def test_map(self) -> None:
        tensor, other = absent(), absent(3)
        tensor.map_(other, lambda a, b: a + b)
        assert torch.equal(tensor, torch.arange(N, dtype=torch.int32) * 5)
        self.check(tensor)
        self.check(other)

    def test_storage_items(self) -> None:
        tensor = absent()
        storage = tensor.untyped_storage()
        assert storage[8] == 4
        tensor.sum()
        storage[8] = 6
        assert tensor[2].item() == 6
        self.check(tensor)

    def test_storage_file(self, tmp_path: Path) -> None:
        tensor = absent()
        with open(tmp_path / "storage", "wb") as file:
            tensor.untyped_storage()._write_file(file, True, False, 1)
        assert (tmp_path / "storage").read_bytes() == expected().tobytes()
        self.check(tensor)

    def test_storage_resize(self) -> None:
        tensor = absent()
        tensor.untyped_storage().resize_(8 * N)
        assert torch.equal(cycle(tensor), torch.arange(N, dtype=torch.int32) * 2)
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0


class TestCleanBlocks:
    """A block that is resident with a valid copy below leaves without being copied again: a raw
    write in between must count as a write, or it would be lost."""

    @pytest.fixture(autouse=True)
    def managed(self) -> Iterator[None]:
        with torch_lms.managed(limit="256MiB", min_block=1, device="cpu"):
            yield

    def clean(self) -> torch.Tensor:
        tensor = torch.arange(N, dtype=torch.int32)
        tensor.mul_(2)
        assert torch.ops.lms.evict(tensor)
        tensor.sum()
        before = torch_lms.memory_stats()["evictions.clean"]
        assert state(tensor) == "resident"
        assert torch.ops.lms.evict(tensor)
        assert torch_lms.memory_stats()["evictions.clean"] == before + 1
        tensor.sum()
        assert state(tensor) == "resident"
        return tensor

    def leave_and_return(self, tensor: torch.Tensor) -> torch.Tensor:
        assert torch.ops.lms.evict(tensor)
        return tensor + 0

    def test_apply(self) -> None:
        tensor = self.clean()
        tensor.apply_(lambda value: value + 1)
        assert np.array_equal(self.leave_and_return(tensor).numpy(), expected() + 1)

    def test_map(self) -> None:
        tensor = self.clean()
        tensor.map_(doubled(), lambda a, b: a + b)
        assert np.array_equal(self.leave_and_return(tensor).numpy(), expected() * 2)

    def test_storage_item(self) -> None:
        tensor = self.clean()
        tensor.untyped_storage()[8] = 6
        assert self.leave_and_return(tensor)[2].item() == 6

    def test_storage_slice(self) -> None:
        tensor = self.clean()
        part = tensor.untyped_storage()[8:12]
        tensor.sum()
        part.fill_(6)  # a storage of its own, over the same memory
        assert not torch.ops.lms.evict(tensor)
        assert tensor[2].item() == 0x06060606

    def test_slice_of_a_small_storage(self) -> None:
        torch_lms.disable()
        torch_lms.enable(limit="256MiB", min_block="4KiB", device="cpu", stress="drop")
        small = torch.arange(4, dtype=torch.int32) * 2
        part = small.untyped_storage()[0:4]
        result = torch.ones(N, 1, dtype=torch.int32) * small
        assert state(result) == "dropped"
        part.fill_(1)
        assert result[5].tolist() == [0, 2, 4, 6]

    def test_storage_byteswap(self) -> None:
        tensor = self.clean()
        tensor.untyped_storage().byteswap(torch.int32)
        result = self.leave_and_return(tensor).numpy()
        assert np.array_equal(result, expected().byteswap())

    def test_storage_from_file(self, tmp_path: Path) -> None:
        tensor = self.clean()
        size = tensor.nbytes
        (tmp_path / "storage").write_bytes(size.to_bytes(8, "little") + bytes(size))
        with open(tmp_path / "storage", "rb") as file:
            tensor.untyped_storage()._set_from_file(file, None, True, 1)
        assert self.leave_and_return(tensor).sum().item() == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("wrapper", ["python", "cpp"])
    def test_generated_kernel(self, wrapper: str) -> None:
        from torch._inductor import config

        tensor = self.clean()
        with config.patch(cpp_wrapper=wrapper == "cpp"):
            torch._dynamo.reset()
            torch.compile(lambda t: t.add_(3), fullgraph=True)(tensor)
            torch._dynamo.reset()
        assert torch.ops.lms.evict(tensor) or wrapper == "cpp"  # the cpp wrapper's are kept
        assert np.array_equal(tensor.numpy(), expected() + 3)

    def test_pointer_in_a_scope(self) -> None:
        tensor = self.clean()
        with _access.scope():
            ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)
            assert not torch.ops.lms.evict(tensor)
        assert self.leave_and_return(tensor).sum().item() == 0


def doubled() -> torch.Tensor:
    return torch.arange(N, dtype=torch.int32) * 2


@pytest.mark.usefixtures("stress")
class TestCompares:
    """Saving and copying leave blocks where they are: a model past the limit can be saved."""

    @pytest.mark.parametrize("zipped", [True, False])
    def test_save_and_load(self, zipped: bool) -> None:
        tensors = {"a": absent(), "b": torch.nn.Parameter(absent(3).float())}
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
        assert state(tensors["a"]) == "absent" or not zipped
        assert state(tensors["b"]) != "kept"
        file.seek(0)
        loaded = torch.load(file)
        assert np.array_equal(loaded["a"].numpy(), expected())
        assert np.array_equal(loaded["b"].detach().numpy(), expected(3).astype(np.float32))

    def test_saved_views_share_storage(self) -> None:
        tensor = absent()
        file = io.BytesIO()
        torch.save([tensor, tensor[10:20]], file)
        file.seek(0)
        whole, part = torch.load(file)
        assert whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        assert np.array_equal(part.numpy(), expected()[10:20])

    def test_pickle(self) -> None:
        tensor = absent()
        assert np.array_equal(pickle.loads(pickle.dumps(tensor)).numpy(), expected())
        assert state(tensor) != "kept"

    def test_deepcopy(self) -> None:
        net = torch.nn.Linear(64, 64)
        net.weight.data.copy_(torch.arange(64 * 64.0).view(64, 64))
        twin = copy.deepcopy(net)
        assert state(net.weight) == "absent"
        net.weight.data.zero_()
        assert torch.equal(twin.weight, torch.arange(64 * 64.0).view(64, 64))
        assert state(twin.weight) != "kept"


@pytest.mark.usefixtures("stress")
def test_scope_ends_with_its_body() -> None:
    tensor = absent()
    with _access.scope():
        _access.access(tensor)
        assert state(tensor) == "resident"
        cycle(tensor)
        assert state(tensor) == "resident"
    cycle(tensor)
    assert state(tensor) == "absent"


@pytest.mark.usefixtures("stress")
def test_scope_ends_on_an_exception() -> None:
    tensor = absent()
    with pytest.raises(KeyError), _access.scope():
        _access.access(tensor)
        raise KeyError
    cycle(tensor)
    assert state(tensor) == "absent"


@pytest.mark.usefixtures("stress")
def test_tensors_without_bytes_are_left_alone() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    real = absent()
    with FakeTensorMode():
        fake = torch.empty(3)
        _access.access(fake)
        assert real.data_ptr() != 0  # a real tensor is brought back under a mode as well
    assert state(real) == "kept"
    for tensor in (
        torch.empty(0),
        torch.empty(4, device="meta"),
        torch.eye(3).to_sparse(),
        TwoTensor(torch.ones(2), torch.ones(2)),
    ):
        _access.access(tensor)
    _access.access_storage(torch.empty(4, device="meta").untyped_storage())
    _access.access_storage(torch.empty(0).untyped_storage())
    torch.func.vmap(lambda row: (_access.access(row), row)[1])(torch.ones(3, 4))


def compiled(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor * 2 + 1
    result.add_(tensor)
    return (result @ result).relu() + 1


@pytest.mark.slow
@pytest.mark.usefixtures("stress")
@pytest.mark.parametrize("wrapper", ["python", "cpp"])
def test_compiled_kernels(wrapper: str) -> None:
    from torch._inductor import config

    def step(tensor: torch.Tensor) -> torch.Tensor:
        result = compiled(tensor)
        tensor.mul_(0.5)  # written by a generated kernel
        return result

    torch.manual_seed(0)
    source = torch.randn(64, 64)
    torch_lms.disable()
    with config.patch(cpp_wrapper=wrapper == "cpp"):
        torch._dynamo.reset()
        run = torch.compile(step, fullgraph=True)
        plain = source.clone()
        results = [run(plain) for _ in range(3)]  # compiled before managing is on
        torch_lms.enable(limit="256MiB", min_block=1, device="cpu", stress=True)
        managed = source.clone()
        for result in results:
            assert torch.equal(run(managed), result)
            managed.sum()
        assert torch.equal(managed, plain)
        torch._dynamo.reset()
        run = torch.compile(step, fullgraph=True)  # compiled while it is on
        managed = source.clone()
        for result in results:
            assert torch.equal(run(managed), result)
            managed.sum()
        assert torch.equal(managed, plain)
        if wrapper == "python":
            assert state(managed) != "kept"
    torch._dynamo.reset()


def test_compilation_sees_the_originals() -> None:
    def uses_numpy(tensor: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(tensor.numpy() * 2)

    def uses_pointer(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return tensor + 1, tensor.data_ptr()

    torch._dynamo.reset()
    torch_lms.enable(limit="256MiB", min_block=1, device="cpu", stress=True)
    source = torch.arange(100.0).add_(1)
    run = torch.compile(uses_numpy, fullgraph=True, backend="eager")
    assert torch.equal(run(source), source * 2)
    run = torch.compile(uses_pointer, fullgraph=True, backend="eager")
    assert run(source)[1] == source.data_ptr()


NAMES = {
    torch.Tensor: ["data_ptr", "numpy", "__dlpack__", "apply_", "map_", "map2_", "__deepcopy__",
                   "__reduce_ex__", "__dlpack_c_exchange_api__"],
    torch.UntypedStorage: ["data_ptr", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_",
                           "__getitem__", "__setitem__", "_write_file", "_set_from_file",
                           "_byteswap", "resize_"],
    torch: ["save", "to_dlpack"],
    torch.utils.dlpack: ["to_dlpack"],
    torch.serialization: ["save"],
    torch.nn.RNNBase: ["flatten_parameters"],
    torch.cuda.CUDAGraph: ["capture_begin", "capture_end"],
}  # fmt: skip


def snapshot() -> dict[tuple[object, str], object]:
    return {
        (owner, name): vars(owner).get(name) for owner, names in NAMES.items() for name in names
    }


def test_wrappers_go_with_disable() -> None:
    before = snapshot()
    torch_lms.enable(limit="256MiB", device="cpu")
    during = snapshot()
    assert all(during[key] is not before[key] for key in before if key[1] in dir(key[0]))
    assert "__dlpack_c_exchange_api__" not in vars(torch.Tensor)
    assert any(isinstance(finder, _PostImport) for finder in sys.meta_path)
    torch_lms.enable(limit="128MiB", device="cpu")
    torch_lms.disable()
    after = snapshot()
    assert all(after[key] is before[key] for key in before)
    assert not any(isinstance(finder, _PostImport) for finder in sys.meta_path)


def test_a_foreign_wrapper_survives_and_ours_goes_quiet() -> None:
    original = torch.Tensor.numpy
    torch_lms.enable(limit="256MiB", device="cpu")
    ours = torch.Tensor.numpy

    def theirs(self: torch.Tensor) -> np.ndarray:
        return ours(self)

    torch.Tensor.numpy = theirs
    try:
        torch_lms.disable()
        assert torch.Tensor.numpy is theirs
        assert torch.ones(3).numpy().sum() == 3
    finally:
        del torch.Tensor.numpy
    assert torch.Tensor.numpy is original


def test_modules_are_patched_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lms_late.py").write_text("class Kernel:\n    def run(self):\n        return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    patches = Patches()

    def callback(module: object) -> None:
        patches.replace(module.Kernel, "run", lambda original: lambda self: original(self) + 1)

    patches.when_imported({"lms_late": callback})
    try:
        module = importlib.import_module("lms_late")
        assert module.Kernel().run() == 2
        assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
        patches.restore()
        assert module.Kernel().run() == 1
    finally:
        patches.restore()
        sys.modules.pop("lms_late", None)
