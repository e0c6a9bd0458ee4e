"""What reads raw pointers: launchers of kernels, compiled packages, CUDA graphs, NCCL's own calls.

A launcher gets an access scope, so that blocks are held for the launch alone. A launch only queues
its kernel, but whatever moves its blocks afterwards waits for the same stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from . import _library
from ._patches import Patches


@dataclass(frozen=True)
class Access:
    """What the wrappers need of ``_access``."""

    access: Callable[[torch.Tensor], None]
    keep: Callable[[torch.Tensor], None]
    scope: Callable[..., AbstractContextManager[list[torch.Tensor]]]
    call: Callable[..., None]
    tracing: Callable[[], bool]


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _launches(patches: Patches, how: Access, walk: bool) -> Callable[[Any], Any]:
    """Makes wrappers that run a launcher in a scope, with ``walk`` on all its tensors at once."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not patches.active or how.tracing():
                return original(*args, **kwargs)
            with how.scope():
                if walk:
                    for tensor in _tensors((*args, *kwargs.values())):
                        how.access(tensor)
                return original(*args, **kwargs)

        return wrapper

    return make


def _cpu_kernel(patches: Patches, how: Access, kernel: Any) -> Any:
    """Wraps one compiled CPU kernel of Inductor's, which reads the pointers of its arguments."""

    def launch(*args: Any) -> Any:
        if not patches.active:
            return kernel(*args)
        with how.scope():
            for tensor in _tensors(args):
                how.access(tensor)
            return kernel(*args)

    return launch


def _wrap_cpu_kernels(patches: Patches, how: Access, names: dict[str, Any]) -> None:
    """Wraps the compiled CPU kernels among a generated module's globals."""
    for name, value in list(names.items()):
        if isinstance(value, BuiltinFunctionType) and value.__name__ == "kernel":
            patches.replace_item(names, name, _cpu_kernel(patches, how, value))


def _patch_codecache(patches: Patches, how: Access, module: ModuleType) -> None:
    for generated in list(module.PyCodeCache.modules):
        _wrap_cpu_kernels(patches, how, vars(generated))


def _patch_async_compile(patches: Patches, how: Access, module: ModuleType) -> None:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wait(self: Any, scope: dict[str, Any]) -> None:
            original(self, scope)
            if patches.active:
                _wrap_cpu_kernels(patches, how, scope)

        return wait

    patches.replace(module.AsyncCompile, "wait", make)


def _patch_output_code(patches: Patches, how: Access, module: ModuleType) -> None:
    """A graph under Inductor's C++ wrapper shows none of its kernels: hold all that it uses."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def __call__(self: Any, inputs: Any) -> Any:
            if not patches.active or not self.fx_kwargs.get("cpp_wrapper"):
                return original(self, inputs)
            ops = _library.ops()
            with how.scope():
                for tensor in _tensors(inputs):
                    how.access(tensor)
                how.call(ops.capture_begin.default, "")
                try:
                    return original(self, inputs)
                finally:
                    how.call(ops.capture_end.default, "")

        return __call__

    patches.replace(module.CompiledFxGraph, "__call__", make)
    # It may have its runner's method since before that was wrapped.
    if hasattr(module, "CompiledAOTI"):
        patches.replace(module.CompiledAOTI, "__call__", _runs_package(patches, how))


def _runs_package(patches: Patches, how: Access) -> Callable[[Any], Any]:
    """Makes wrappers for running a package of AOTInductor.

    Its kernels get the addresses of the inputs, and of what operators within it have made. What it
    has made and goes on using (folded constants) stays where it is.
    """

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not patches.active or how.tracing():
                return original(*args, **kwargs)
            with how.scope(holds=True) as handed:
                for values in (*args, *kwargs.values()):
                    if isinstance(values, list | tuple):
                        handed.extend(_tensors(values))  # a boxed run takes them away
                for tensor in handed:
                    how.access(tensor)
                outputs = original(*args, **kwargs)
                handed.extend(_tensors(outputs))
                return outputs

        return run

    return make


def _takes_constants(patches: Patches, how: Access) -> Callable[[Any], Any]:
    """Makes wrappers for giving constants to a package: it copies them, or uses them for good."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def take(*args: Any, **kwargs: Any) -> Any:
            if not patches.active:
                return original(*args, **kwargs)
            # (self, constants, use_inactive, check_full_update, user_managed)
            for_good = kwargs.get("user_managed", len(args) > 4 and args[4])
            with how.scope():
                for values in (*args, *kwargs.values()):
                    for tensor in _tensors(values.values() if isinstance(values, dict) else ()):
                        (how.keep if for_good else how.access)(tensor)
                return original(*args, **kwargs)

        return take

    return make


def nested(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Tensors, and those in lists, tuples and dictionaries."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from nested(value)
        elif isinstance(value, dict):
            yield from nested(value.values())
        elif isinstance(value, torch.Tensor):
            yield value


def _passes_dispatcher(patches: Patches, how: Access, for_good: bool) -> Callable[[Any], Any]:
    """Makes wrappers for functions that hand their arguments to kernels of no operator.

    With ``for_good`` the arguments are kept: their streams need not be the current ones.
    """

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not patches.active or how.tracing():
                return original(*args, **kwargs)
            # What operators make within, and hand to such a kernel, is held as well.
            with how.scope(holds=True) as handed:
                for tensor in nested((*args, *kwargs.values())):
                    (how.keep if for_good else how.access)(tensor)
                    handed.append(tensor)
                results = original(*args, **kwargs)
                handed.extend(nested((results,)))
                return results

        return wrapper

    return make


def _patch_bindings(patches: Patches, how: Access) -> None:
    in_scope = _passes_dispatcher(patches, how, for_good=False)
    for name in (
        "_cuda_jiterator_compile_and_launch_kernel",
        "_broadcast",
        "_broadcast_coalesced",
        "_broadcast_out",
    ):
        patches.replace(torch._C, name, in_scope)
    kept = _passes_dispatcher(patches, how, for_good=True)
    for name in ("all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"):
        patches.replace(torch._C, f"_nccl_{name}", kept)


def _patch_packages(patches: Patches, how: Access) -> None:
    runs, takes = _runs_package(patches, how), _takes_constants(patches, how)
    module = getattr(torch._C, "_aoti", None)
    for name, runner in vars(module).items() if module is not None else ():
        if not isinstance(runner, type) or not name.startswith("AOTIModel"):
            continue
        for method in ("run", "boxed_run"):
            patches.replace(runner, method, runs)
        for method in (
            "load_constants",
            "update_constant_buffer",
            "update_constant_buffer_from_cpu",  # from PyTorch 2.15 on
        ):
            patches.replace(runner, method, takes)


def _patch_graphs(patches: Patches, how: Access) -> None:
    """Blocks that a CUDA graph uses have their addresses written into it: they are kept."""
    began = "_lms_device"

    def make_begin(original: Any) -> Any:
        @functools.wraps(original)
        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            device = f"cuda:{torch.cuda.current_device()}"
            ops = _library.ops()
            if not patches.active or not ops.is_enabled(device):
                return original(self, *args, **kwargs)
            how.call(ops.capture_begin.default, device)
            try:
                result = original(self, *args, **kwargs)
            except BaseException:
                how.call(ops.capture_end.default, device)
                raise
            setattr(self, began, device)
            return result

        return capture_begin

    def make_end(original: Any) -> Any:
        @functools.wraps(original)
        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                device = self.__dict__.pop(began, None)
                if device is not None:
                    how.call(_library.ops().capture_end.default, device)

        return capture_end

    patches.replace(torch.cuda.CUDAGraph, "capture_begin", make_begin)
    patches.replace(torch.cuda.CUDAGraph, "capture_end", make_end)


def _patch_autotuners(patches: Patches, how: Access, module: ModuleType) -> None:
    """All launchers of Inductor's kernels are called by these."""
    for tuner in (module.CachingAutotuner, module.DebugAutotuner):
        patches.replace(tuner, "run", _launches(patches, how, walk=True))


def patch(patches: Patches, how: Access) -> None:
    """Wraps the launchers of the modules that are loaded, and of the others as they come."""
    _patch_graphs(patches, how)
    _patch_packages(patches, how)
    _patch_bindings(patches, how)
    # Triton's launchers ask each argument for data_ptr(), which is wrapped itself; Inductor's own
    # launcher need not.
    patches.when_imported(
        {
            "triton.runtime.jit": lambda module: patches.replace(
                module.JITFunction, "run", _launches(patches, how, walk=False)
            ),
            "torch._inductor.runtime.triton_heuristics": lambda module: _patch_autotuners(
                patches, how, module
            ),
            "torch._inductor.codecache": lambda module: _patch_codecache(patches, how, module),
            "torch._inductor.async_compile": lambda module: _patch_async_compile(
                patches, how, module
            ),
            # It asks each argument for data_ptr().
            "torch.cuda._utils": lambda module: patches.replace(
                module._CudaKernel, "__call__", _launches(patches, how, walk=False)
            ),
            "torch._inductor.output_code": lambda module: _patch_output_code(patches, how, module),
        }
    )
