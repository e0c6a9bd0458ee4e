"""What PyTorch and other libraries do with addresses: who keeps a block, and who does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from stress.probe import state
from torch.export.pt2_archive import _package

import torch_lms

N = 5000
KIB = 1 << 10


def numbers(value: int = 1) -> torch.Tensor:
    return torch.arange(N, dtype=torch.float32) * value


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
@pytest.mark.parametrize("zipped", [True, False], ids=["zipped", "legacy"])
def test_more_is_loaded_than_there_is_room_for(tmp_path: Path, zipped: bool) -> None:
    torch.save(weights(12), tmp_path / "file", _use_new_zipfile_serialization=zipped)
    loaded = torch.load(tmp_path / "file")
    assert torch_lms.memory_stats()["kept.bytes.current"] == 0
    assert all(torch.equal(loaded[key], weight) for key, weight in weights(12).items())


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


ESCAPES = {"data_ptr", "_share_cuda_", "_share_fd_cpu_", "_share_filename_cpu_"}
BORROWS = {"__setitem__", "_byteswap", "_set_from_file", "_write_file"}
BOTH = {"__getitem__"}  # a slice escapes
FREES = {"resize_"}
CHECKS = {"copy_", "fill_"}  # done by operators, once there is an address
GIVES_OTHERS = {"_swap_data_ptr_", "_resize_with_addr_"}  # from PyTorch 2.15 on
# Done by operators, or by methods above.
BY_OTHERS = {
    "__copy__", "__deepcopy__", "__iter__", "_share_memory_", "_to", "bfloat16", "bool", "byte",
    "byteswap", "char", "clone", "complex_double", "complex_float", "cpu", "cuda",
    "double", "float", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "half", "hpu", "int", "long", "mps", "pin_memory", "share_memory_", "short",
    "to", "tolist", "type", "_data_ptr", "_deepcopy", "_getitem", "_resize_", "_setitem",
}  # fmt: skip
# No bytes of a block: sizes, kinds, storages that are new, shared already, or only named.
NOTHING = {
    "__annotations__", "__delitem__", "__dict__", "__len__", "__module__", "__weakref__", "_cdata",
    "_checkpoint_offset", "_dtype", "_element_size", "_expired", "_fake_device", "_fix_weakref",
    "_free_weak_ref", "_from_buffer", "_get_filename", "_get_legacy_storage_class",
    "_get_shared_fd", "_is_shared", "_maybe_wrap_index", "_nbytes", "_new_shared",
    "_new_shared_cuda", "_new_shared_fd_cpu", "_new_shared_filename_cpu", "_new_using_fd_cpu",
    "_new_using_filename_cpu", "_new_with_file", "_new_with_weak_ptr", "_new_wrapped_storage",
    "_pickle_storage_type", "_release_ipc_counter", "_release_ipc_counter_cuda", "_set_cdata",
    "_shared_decref", "_shared_incref", "_size", "_weak_ref", "device", "element_size", "filename",
    "from_buffer", "from_file", "get_device", "is_cuda", "is_hpu", "is_pinned", "is_shared",
    "is_sparse", "is_sparse_csr", "nbytes", "new", "pickle_storage_type", "resizable", "size",
    "untyped",
}  # fmt: skip
RAW = ESCAPES | BORROWS | BOTH | FREES | CHECKS | GIVES_OTHERS


def test_every_method_of_a_storage_is_known() -> None:
    """A new method of PyTorch's is to be looked at, and sorted into one of these."""
    ways = set(dir(torch.UntypedStorage)) | set(dir(torch.TypedStorage))
    ways -= set(dir(object))
    assert ways - (RAW | BY_OTHERS | NOTHING) == set(), "new ways to a storage's memory?"


def test_every_raw_method_of_a_storage_is_wrapped() -> None:
    names = set(dir(torch.UntypedStorage)) - set(dir(object)) - {"__dict__"}
    before = {name: getattr(torch.UntypedStorage, name) for name in names}
    with torch_lms.managed(limit="256MiB", device="cpu"):
        wrapped = {
            name
            for name, original in before.items()
            if getattr(torch.UntypedStorage, name) != original
        }
    assert wrapped == RAW & names


# What looks like a raw way to a tensor's memory, by its name.
OF_TENSORS = {
    "__array__", "__array_priority__", "__array_wrap__", "__cuda_array_interface__", "__dlpack__",
    "__dlpack_c_exchange_api__", "__dlpack_device__", "_cdata",
    "_clear_non_serializable_cached_data", "_nested_tensor_storage_offsets", "_typed_storage",
    "const_data_ptr", "data_ptr", "is_pinned", "is_shared", "numpy", "pin_memory", "pinverse",
    "share_memory_", "storage", "storage_offset", "storage_type", "untyped_storage",
}  # fmt: skip
OF_MODULE = {
    "_construct_CUDA_Tensor_From_Storage_And_Metadata", "_construct_storage_from_data_pointer",
    "_dlpack_exchange_api", "_from_dlpack", "_gds_deregister_buffer",
    "_gds_deregister_handle", "_gds_register_handle", "_gds_load_storage",
    "_gds_register_buffer", "_gds_save_storage", "_has_storage", "_set_storage_access_error_msg",
    "_set_storage_data_ptr_access_error_msg", "_set_throw_on_mutable_data_ptr",
    "_set_warn_deprecated_on_mutable_data_ptr", "_storage_Use_Count", "_storage_address",
    "_storage_id", "_swap_tensor_impl", "_tensors_data_ptrs_at_indices_equal", "_to_dlpack",
    "_to_dlpack_versioned", "_unsafe_reset_storage",
    # From PyTorch 2.15 on.
    "_clear_storage_data_ptr_access_error_msg", "_const_dlpack_exchange_api",
    "_storage_throw_on_immutable_data_ptr", "_storage_throw_on_mutable_data_ptr",
}  # fmt: skip
# What may launch kernels that no operator announces.
OF_LAUNCHERS = {
    # In a CachingAutotuner, which is wrapped; the second from PyTorch 2.13 on.
    "_StaticCudaLauncher", "_FastCudaLauncher",
    "_broadcast", "_broadcast_coalesced", "_broadcast_out",
    "_cuda_jiterator_compile_and_launch_kernel", "_get_backcompat_broadcast_warn",
    "_nccl_all_gather", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_init_rank", "_nccl_reduce",
    "_nccl_reduce_scatter", "_nccl_unique_id", "_nccl_version", "_nccl_version_suffix",
    "_set_backcompat_broadcast_warn",
}  # fmt: skip


def test_every_raw_way_to_a_tensor_is_known() -> None:
    words = ("ptr", "pointer", "dlpack", "array", "numpy", "storage", "share", "pin", "cdata")
    ways = {name for name in dir(torch.Tensor) if any(word in name.lower() for word in words)}
    ways |= {name for name in dir(torch.Tensor) if name.endswith("_data")}
    assert ways - OF_TENSORS == set(), "new ways to a tensor's memory?"
    words = ("data_ptr", "pointer", "dlpack", "storage_", "_storage", "gds_", "swap_tensor")
    ways = {
        name
        for name in dir(torch._C)
        if name.startswith("_") and any(word in name.lower() for word in words)
    }
    assert ways - OF_MODULE == set(), "new ways to a tensor's memory?"
    words = ("launch", "jiterator", "_nccl_", "_broadcast")
    ways = {name for name in dir(torch._C) if any(word in name.lower() for word in words)}
    assert ways - OF_LAUNCHERS == set(), "new ways past the dispatcher?"
    runners = {name for name in dir(torch._C._aoti) if name.startswith("AOTI")}
    known = {"__init__", "get_call_spec", "get_constant_names_to_dtypes", "get_metadata",
             "get_constant_names_to_original_fqns", "get_constant_fqns", "extract_constants_map",
             "swap_constant_buffer", "free_inactive_constant_buffer", "load_constants",
             "update_constant_buffer", "update_constant_buffer_from_blob", "run", "boxed_run",
             "load_metadata_from_package", "did_call_load_constants", "get_custom_objs",
             "update_constant_buffer_from_cpu"}  # fmt: skip
    for name in runners:
        methods = {method for method in vars(getattr(torch._C._aoti, name)) if method[:2] != "__"}
        assert methods - known - {"_pybind11_conduit_v1_"} == set(), "new ways to run a package?"


def test_every_autotuner_launches_in_a_scope() -> None:
    heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
    tuners = [
        value
        for value in vars(heuristics).values()
        if isinstance(value, type) and issubclass(value, heuristics.CachingAutotuner)
    ]
    runs = {tuner: vars(tuner)["run"] for tuner in tuners if "run" in vars(tuner)}
    with torch_lms.managed(limit="1GiB", device="cpu"):
        assert {t: vars(t)["run"].__wrapped__ for t in runs} == runs


READS: dict[str, Callable[[torch.UntypedStorage], object]] = {
    "clone": lambda s: s.clone().tolist(),
    "cpu": lambda s: s.cpu().tolist(),
    "copy": lambda s: s.__copy__().tolist(),
    "tolist": lambda s: s.tolist(),
    "iter": lambda s: list(s),
    "item": lambda s: s[4],
    "as integers": lambda s: s.int().tolist(),
    "to": lambda s: s.to(device="cpu").tolist(),
    "copy_": lambda s: torch.UntypedStorage(s.size()).copy_(s).tolist(),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.filterwarnings("ignore")
def test_reads_of_a_storage(away: str, how: str) -> None:
    plain = torch.arange(32, dtype=torch.float32)
    expected = READS[how](plain.untyped_storage())
    x = torch.arange(32, dtype=torch.float32) * 1
    assert state(x) == away
    assert READS[how](x.untyped_storage()) == expected
    x.mul_(1)
    assert state(x) != "kept"
