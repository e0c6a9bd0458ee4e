"""Code that is known to ask for addresses without ever writing there, by module and function.

``data_ptr()`` is a number: what its caller does with it nobody can see. Some callers are known all
the same, among them those that save a model: they compare addresses, to find tensors that share
memory, or read the bytes before they return.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Literal

Purpose = Literal["compares", "reads"]

# Addresses compared at one moment.
_COMPARES = {
    ("torch.serialization", "load_tensor"),
    ("torch.serialization", "persistent_load"),
    ("torch.storage", "_to"),
    ("torch._dynamo.utils", "torch_clone"),
    ("torch._dynamo.utils", "skip_frame_if_in_functorch_mode"),
    ("torch._inductor.utils", "copy_misaligned_inputs"),
    ("torch._inductor.utils", "is_same_tensor"),
    ("torch._inductor.utils", "remove_unaligned_input_idxs"),
    ("torch.distributed._state_dict_utils", "tensor_func"),
    ("torch.distributed.checkpoint._state_dict_stager", "_offload_tensor"),
    ("torch.distributed.fsdp._flat_param", "_same_storage"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param", "reset_sharded_param"),
    ("torch.distributed.fsdp._runtime_utils", "_catch_all_reshard"),
    ("torch.distributed.utils", "_data_ptr_allocated"),
    ("torch.export.pt2_archive._package_weights", "__init__"),
    ("torch.export.pt2_archive._package_weights", "_end_ptr"),
    ("torch.export.pt2_archive._package_weights", "get_complete_tensor"),
    ("torch.utils.viz._cycles", "object_context"),
}
# Addresses compared with earlier ones: of use where an address stays the same, on the CPU.
_REMEMBERS = {
    ("torch.autograd.graph", "_get_sid"),
    ("torch.autograd.graph", "_get_tid"),
}
# Bytes of CPU tensors that are read before the function, or its caller, is done.
_READS = {
    ("safetensors.torch", "_to_ndarray"),
    ("safetensors.torch", "_tobytes"),
    ("torch._inductor.codecache", "_to_bytes"),
    ("torch.export.pt2_archive._package", "_get_raw_tensor_bytes"),
    ("torch.onnx._internal.exporter._core", "_get_cbytes"),
    ("torch.utils._content_store", "hash_storage"),
}
# Libraries that find shared tensors all alike, and move these functions from module to module.
_SAVERS = {"accelerate", "diffusers", "huggingface_hub", "peft", "safetensors", "transformers"}
_FINDS_SHARED = {
    "_end_ptr",
    "_filter_shared_not_shared",
    "_find_disjoint",
    "_find_identical",
    "_find_shared_tensors",
    "_get_unique_id",
    "_is_complete",
    "id_tensor_storage",
    "storage_ptr",
}
_COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
_ON_THE_WAY = {("torch.storage", "data_ptr"), ("torch.storage", "_data_ptr")}


def purpose(on_cpu: bool) -> Purpose | None:
    """What the code that has called into this package wants an address for; None: who knows.

    Looks at the first frames outside of the package, so that it does not matter when, and under
    which names, others have imported the function.
    """
    ours = __name__.partition(".")[0] + "."
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        where = (module, frame.f_code.co_name)
        if where[1] in _COMPREHENSIONS:
            outer = frame.f_back
            if outer is None or outer.f_globals is not frame.f_globals:
                return None
        elif not module.startswith(ours) and where not in _ON_THE_WAY:
            break
        frame = frame.f_back
    else:
        return None
    if where in _COMPARES or (on_cpu and where in _REMEMBERS):
        return "compares"
    if where in _READS:
        return "reads" if on_cpu else "compares"  # from a GPU they take a copy
    if module.partition(".")[0] in _SAVERS and where[1] in _FINDS_SHARED:
        return "compares"
    return None
