"""Llama 1.1 B in trainers of others and in loops with what these add, plain and under LMS.

    python lab/bench/trainers.py --ratios 2,3 --out trainers.json
    python lab/bench/trainers.py --only scaler --ratios 2

Each runs plainly, twice, since only what repeats can be compared; then at its peak over each of
the ratios, with nothing but ``torch_lms.enable(limit=...)``. The limit is enforced by the
allocator's memory fraction, too. Every run is a process of its own. What is timed are the last
``--timed`` steps, on the device's clock; the trainers' own defaults hold, clipping among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from bench import memory, records, weights
from bench.host import Clock, python_loop_ms
from bench.language_models import SHAPES
from bench.packages import Missing, import_package
from bench.records import Record
from bench.steps import package

_SEED = 20260101
_TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


@dataclass
class _Run:
    """One training: what it is made of, and what is left of it."""

    device: torch.device
    tiny: bool
    steps: int
    model: nn.Module | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock(self.device)

    def llama(self, dtype: torch.dtype) -> nn.Module:
        transformers = import_package("transformers")
        shape = _TINY if self.tiny else SHAPES["1b"]
        config = transformers.LlamaConfig(**shape, attn_implementation="sdpa", use_cache=False)
        transformers.set_seed(_SEED)
        self.model = transformers.LlamaForCausalLM(config).to(dtype).to(self.device).train()
        return self.model

    def rows(self, count: int) -> torch.Tensor:
        """So many rows of words, on the host."""
        shape = _TINY if self.tiny else SHAPES["1b"]
        generator = torch.Generator().manual_seed(_SEED)
        length = 64 if self.tiny else 2048
        return torch.randint(shape["vocab_size"], (count, length), generator=generator)

    def arguments(self, folder: str) -> dict[str, Any]:
        """Those of a trainer, beside its defaults: when it ends, and that it saves nothing."""
        return {
            "output_dir": folder,
            "max_steps": self.steps,
            "logging_steps": self.steps // 4,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": self.device.type == "cpu",
        }

    def train(self, trainer: Any) -> None:
        """Trains with a Trainer of Hugging Face's."""
        clock = self.clock

        class Moments(import_package("transformers").TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.mark()

        trainer.add_callback(Moments())
        trainer.train()
        self.losses += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _trainer(run: _Run, folder: str, batch: int = 4, **more: Any) -> None:
    transformers = import_package("transformers")
    model = run.llama(torch.bfloat16)
    rows = run.rows(run.steps * batch * more.get("gradient_accumulation_steps", 1))
    arguments = transformers.TrainingArguments(
        **run.arguments(folder), per_device_train_batch_size=batch, **more
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    run.train(transformers.Trainer(model, arguments, train_dataset=data))


def _accumulation(run: _Run, folder: str) -> None:
    _trainer(run, folder, batch=2, gradient_accumulation_steps=4)


def _scaler(run: _Run, folder: str) -> None:
    model = run.llama(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler(run.device.type)
    for step, batch in enumerate(run.rows(run.steps * 4).split(4), 1):
        words = batch.to(run.device)
        with torch.autocast(run.device.type, torch.float16):
            loss = model(input_ids=words, labels=words).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.clock.mark()
        if step % (run.steps // 4) == 0:
            run.losses.append(loss.item())


def _sft(run: _Run, folder: str) -> None:
    trl, datasets = import_package("trl"), import_package("datasets")
    transformers, tokenizers = import_package("transformers"), import_package("tokenizers")
    model = run.llama(torch.bfloat16)
    rows = run.rows(run.steps * 4)
    words = {f"w{at}": at for at in range(model.config.vocab_size)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")),
        eos_token="w1",
        pad_token="w2",
    )
    arguments = trl.SFTConfig(
        **run.arguments(folder), per_device_train_batch_size=4, max_length=rows.shape[1]
    )
    data = datasets.Dataset.from_dict({"input_ids": rows.tolist()})
    run.train(trl.SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer))


CASES: dict[str, Callable[[_Run, str], None]] = {
    "trainer": _trainer,
    "accumulation": _accumulation,
    "scaler": _scaler,
    "sft": _sft,
}


def _run_here(given: argparse.Namespace) -> Record:
    """One run in this process."""
    device = torch.device(given.device)
    lms = package()
    sys.path.remove(str(Path(__file__).resolve().parent.parent))  # `datasets` is there, too
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_cudnn_sdp(False)  # whose backward pass does not repeat
    row: Record = {"case": given.case, "limit": given.limit, "loop_ms": python_loop_ms()}
    if given.limit:
        small = {"min_block": 4096} if given.tiny else {}
        lms.enable(limit=given.limit, device=device.type, **small)
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(given.limit / total)
    run = _Run(device, given.tiny, given.steps)
    with tempfile.TemporaryDirectory() as folder:
        if device.type == "cpu" and not given.limit:
            with memory.LiveBytes() as live:
                CASES[given.case](run, folder)
            row["peak"] = live.peak
        else:
            CASES[given.case](run, folder)
    assert run.model is not None
    laps = run.clock.laps_ms()
    row |= {
        "step_ms": statistics.median(laps[-given.timed :]),
        "step_ms_all": laps,
        "losses": [float(loss).hex() for loss in run.losses],
        "weights": weights.fingerprint(run.model),
    }
    if device.type == "cuda":
        peaks = memory.read_peaks(device)
        row |= {"peak": peaks["allocated_peak"], "reserved": peaks["reserved_peak"]}
    if given.limit:
        stats = lms.memory_stats(device.type)
        row["stats"] = stats
        row["planned"] = stats["plan.steps"]
        row["predicted_ms"] = stats["plan.predicted_us"] / 1e3
    return row


def _run_there(given: argparse.Namespace, case: str, limit: int) -> Record:
    """One run in a process of its own; its error, if it has one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        command = [sys.executable, __file__, "--case", case, "--limit", str(limit)]
        command += ["--device", given.device, "--steps", str(given.steps)]
        command += ["--timed", str(given.timed), "--out", str(file)]
        command += ["--tiny"] if given.tiny else []
        ran = subprocess.run(command, capture_output=True, text=True)
        if file.exists():
            return json.loads(file.read_text())
        return {"case": case, "limit": limit, "error": ran.stderr[-2000:]}


def _case(given: argparse.Namespace, case: str) -> list[Record]:
    plain, again = (_run_there(given, case, 0) for _ in range(2))
    if "error" in plain or "error" in again:
        return [plain, again]
    same = ("losses", "weights")
    plain["repeats"] = all(plain[key] == again[key] for key in same)
    found = [plain]
    print(f"{case}: {plain['step_ms']:.1f} ms, {plain['peak'] / 2**30:.2f} GiB", flush=True)
    for ratio in given.ratios:
        row = _run_there(given, case, int(plain["peak"] / ratio))
        found.append(row | {"ratio": ratio})
        if "error" in row:
            print(f"{case} at {ratio:g}x: {row['error']}", flush=True)
            continue
        found[-1] |= {
            "overhead": row["step_ms"] / plain["step_ms"] - 1,
            "predicted_overhead": row["predicted_ms"] / plain["step_ms"] - 1,
            "same_bits": all(row[key] == plain[key] for key in same) if plain["repeats"] else None,
        }
        row = found[-1]
        print(
            f"{case} at {ratio:g}x: {row['step_ms']:.1f} ms, {row['overhead']:+.1%} (predicted "
            f"{row['predicted_overhead']:+.1%}), {row['planned']} of {given.steps} planned, same "
            f"bits: {row['same_bits']}, loop {row['loop_ms']:.1f} ms",
            flush=True,
        )
    return found


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument(
        "--ratios", type=lambda text: [float(one) for one in text.split(",")], default=[2.0, 3.0]
    )
    parser.add_argument("--steps", type=int, default=80, help="of each run")
    parser.add_argument("--timed", type=int, default=20, help="of them, the last")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", choices=CASES, help="only this, here, at --limit (0: plain)")
    parser.add_argument("--limit", type=int, default=0, help="bytes")
    given = parser.parse_args()
    if given.case:
        made: Any = _run_here(given)
    else:
        rows = [row for case in given.only for row in _case(given, case)]
        commit, dirty = records.commit()
        made = {"machine": records.machine(torch.device(given.device).type), "commit": commit}
        made |= {"commit_dirty": dirty, "rows": rows}
    if given.out:
        records.write(made, given.out)


if __name__ == "__main__":
    try:
        main()
    except Missing as missing:
        sys.exit(str(missing))
