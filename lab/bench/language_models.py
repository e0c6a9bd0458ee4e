"""Full fine-tuning of large language models under a small limit: tokens a second, step by step.

    python lab/bench/language_models.py --shape 8b --rows 8 --limit 24GiB --checkpointing
    python lab/bench/language_models.py --shape 1b --tokens 131072 --limit 24GiB --checkpointing
    python lab/bench/language_models.py --shape 8b --clip --steps 45

Weights and AdamW's states are bfloat16, words are drawn at random. Weights are updated in the
backward pass; with ``--clip``, which needs all gradients, by the optimizer's step, as PyTorch has
it by default. PyTorch's allocator has the limit as its memory fraction, and 1.2 GiB for the
context.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

import torch_lms

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


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4096, help="of a row")
    parser.add_argument("--limit", default="24GiB")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--clip", action="store_true", help="gradients are clipped at norm 1")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=600, help="no step begins after these")
    parser.add_argument("--trace", help="the step that is known at the end is saved there")
    given = parser.parse_args()
    end = time.perf_counter() + given.seconds
    torch.manual_seed(0)
    torch_lms.enable(limit=given.limit)
    limit = torch_lms.memory_stats()["limit"]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (limit + _CONTEXT) / total))
    model = _model(given.shape, given.tokens, given.checkpointing)
    if given.clip:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        torch_lms.step_in_backward(optimizer)
    words = SHAPES[given.shape]["vocab_size"]
    took = []
    for step in range(given.steps):
        if time.perf_counter() > end:
            break
        batch = torch.randint(0, words, (given.rows, given.tokens), device="cuda")
        start = time.perf_counter()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        if given.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
        stats = torch_lms.memory_stats()
        print(
            f"step {step}: loss {value:.4f}, {took[-1]:.2f} s, "
            f"{batch.numel() / took[-1]:.0f} tokens/s, planned so far {stats['plan.steps']}, "
            f"predicted {stats['plan.predicted_us'] / 1e6:.2f} s",
            flush=True,
        )
    last = statistics.median(took[-_LAST:])
    print(
        f"{torch.cuda.get_device_name()}, {given.shape}, {given.rows} x {given.tokens} tokens, "
        f"limit {given.limit}, checkpointing {given.checkpointing}, clipped {given.clip}: "
        f"{last:.2f} s, {given.rows * given.tokens / last:.0f} tokens/s, "
        f"reserved at most {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB"
    )
    print(torch_lms.explain())
    if given.trace:
        torch_lms.save_trace(given.trace)


if __name__ == "__main__":
    main()
