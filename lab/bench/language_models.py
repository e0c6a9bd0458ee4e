"""Full fine-tuning of large language models under a small limit: tokens a second, step by step.

    python lab/bench/language_models.py --shape 8b --rows 8 --limit 24GiB --checkpointing
    python lab/bench/language_models.py --shape 1b --tokens 131072 --limit 24GiB --checkpointing
    python lab/bench/language_models.py --shape 8b --clip --steps 45
    python lab/bench/language_models.py --shape 8b --rows 8 --checkpointing --without-lms
    python lab/bench/language_models.py --shape 8b --rows 8 --checkpointing --in-memory --repeatable

Weights and AdamW's states are bfloat16, words are drawn at random. Weights are updated in the
backward pass; with ``--clip``, which needs all gradients, by the optimizer's step, as PyTorch has
it by default. PyTorch's allocator has the limit as its memory fraction, and 1.2 GiB for the
context. Without LMS, what is saved for the backward pass goes to pinned memory of the host
(`torch.autograd.graph.save_on_cpu`), and the optimizer updates after the backward pass. With
``--in-memory`` neither is there, and no limit either: what results are compared with.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import torch_lms
from bench import weights
from bench.run import parse_bytes

SHAPES = {
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "1b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}
_CONTEXT = 1.2 * 2**30
_LAST = 3


def _model(shape: str, tokens: int, checkpointing: bool) -> torch.nn.Module:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=max(tokens, 8192),
        attn_implementation="sdpa",
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4096, help="of a row")
    parser.add_argument("--limit", default="24GiB")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--clip", action="store_true", help="gradients are clipped at norm 1")
    parser.add_argument("--without-lms", action="store_true", help="what one does today")
    parser.add_argument("--in-memory", action="store_true", help="plain PyTorch, without a limit")
    parser.add_argument(
        "--repeatable", action="store_true", help="kernels that repeat; weights are told at the end"
    )
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=600, help="no step begins after these")
    parser.add_argument("--trace", help="the step that is known at the end is saved there")
    given = parser.parse_args()
    given.lms = not (given.without_lms or given.in_memory)
    return given


def _configure(given: argparse.Namespace) -> None:
    limit = parse_bytes(given.limit)
    if given.lms:
        torch_lms.enable(limit=limit)
    if not given.in_memory:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + _CONTEXT) / total))
    if given.repeatable:
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False


def _saved(given: argparse.Namespace) -> contextlib.AbstractContextManager[Any]:
    if not given.without_lms:
        return contextlib.nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def main() -> None:
    """See the module's text."""
    given = _parse()
    end = time.perf_counter() + given.seconds
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(0)
    _configure(given)
    model = _model(given.shape, given.tokens, given.checkpointing)
    if given.clip:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        if given.lms:
            torch_lms.step_in_backward(optimizer)
    words = SHAPES[given.shape]["vocab_size"]
    took = []
    for step in range(given.steps):
        if time.perf_counter() > end:
            break
        batch = torch.randint(0, words, (given.rows, given.tokens), device="cuda")
        start = time.perf_counter()
        with _saved(given):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
        if given.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
        text = (
            f"step {step}: loss {value.hex()}, {took[-1]:.2f} s, "
            f"{batch.numel() / took[-1]:.0f} tokens/s"
        )
        if given.lms:
            stats = torch_lms.memory_stats()
            text += (
                f", planned so far {stats['plan.steps']}, "
                f"predicted {stats['plan.predicted_us'] / 1e6:.2f} s"
            )
        print(text, flush=True)
    last = statistics.median(took[-_LAST:])
    print(
        f"{torch.cuda.get_device_name()}, {given.shape}, {given.rows} x {given.tokens} tokens, "
        f"limit {'none' if given.in_memory else given.limit}, "
        f"checkpointing {given.checkpointing}, clipped {given.clip}, "
        f"{'with' if given.lms else 'without'} LMS: "
        f"{last:.2f} s, {given.rows * given.tokens / last:.0f} tokens/s, "
        f"reserved at most {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB"
    )
    if given.lms:
        print(torch_lms.explain())
        if given.trace:
            torch_lms.save_trace(given.trace)
    if given.repeatable:
        print("weights", weights.fingerprint(model))


if __name__ == "__main__":
    main()
