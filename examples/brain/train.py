"""Train the U-Net on the brain: a plain PyTorch script, and one line more with `--limit`.

`demo.py` starts it twice, in fresh processes; it also runs alone:

    python examples/brain/train.py --out build/demo/plain
    python examples/brain/train.py --out build/demo/lms --limit 300MiB
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from meter import PeakMeter
from tissue import CLASSES, FULL, load_brain
from tqdm import tqdm
from unet import UNet3d, parameter_count

_RATE = 0.02


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", type=int, nargs=3, default=FULL, metavar=("X", "Y", "Z"))
    parser.add_argument("--limit", help="train under LMS with this limit (bytes, or like 300MiB)")
    parser.add_argument(
        "--cap", type=int, help="GPU: bytes PyTorch's allocator may reserve at most"
    )
    parser.add_argument("--label", default="training", help="in front of the progress bar")
    return parser.parse_args()


def _make_repeatable(threads: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # It would write NaN into every new tensor, for programs that read what they never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _digest(model: torch.nn.Module) -> str:
    """SHA-256 over the bytes of every weight, in order."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _train(
    model: torch.nn.Module, image: torch.Tensor, truth: torch.Tensor, steps: int, label: str
) -> tuple[list[float], list[float]]:
    """Losses and seconds of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.8, 0.95))

    def decay(step: int) -> float:
        return 0.5 if step == 0 else 1 - 0.8 * step / steps

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

    losses: list[float] = []
    seconds: list[float] = []
    quiet = not sys.stderr.isatty()
    bar = tqdm(total=steps, desc=label, unit="step", disable=quiet, ncols=79, nrows=24)
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        scores = model(image).permute(0, 2, 3, 4, 1).reshape(-1, len(CLASSES))
        loss = F.cross_entropy(scores, truth)
        del scores
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        _sync(image.device)
        seconds.append(time.perf_counter() - start)
        bar.set_postfix_str(f"loss {losses[-1]:.4f}", refresh=False)
        bar.update()
    bar.close()
    return losses, seconds


def main() -> int:
    args = _arguments()
    device = _device(args.device)
    _make_repeatable(args.threads)
    _sync(device)
    if args.cap and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(args.cap / total, device)

    meter = PeakMeter(device)
    if args.limit:
        import torch_lms

        torch_lms.enable(limit=args.limit)  # the one line

    brain = load_brain(tuple(args.shape))
    layout = torch.channels_last_3d
    image = torch.from_numpy(brain.image)[None, None].to(device).to(memory_format=layout)
    truth = torch.from_numpy(brain.labels.astype(np.int64)).reshape(-1).to(device)
    # A GPU has time for a deeper network; and there one operator with its workspace takes more of
    # the memory of a shallow one than a third.
    convolutions = 5 if device.type == "cuda" else 2
    model = UNet3d(len(CLASSES), convolutions=convolutions).to(device, memory_format=layout)
    losses, seconds = _train(model, image, truth, args.steps, args.label)
    stats: dict[str, int] = {}
    if args.limit:
        stats = dict(torch_lms.memory_stats())

    with torch.no_grad():
        tissue = model(image).argmax(1)[0].to(torch.uint8).cpu().numpy()
    weights = _digest(model)
    peak = meter.stop()

    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / "prediction.npy", tissue)
    result = {
        "device": str(device),
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "threads": args.threads,
        "shape": list(args.shape),
        "parameters": parameter_count(model),
        "limit": args.limit,
        "peak": peak,
        "losses": [value.hex() for value in losses],
        "seconds": seconds,
        "weights": weights,
        "prediction": hashlib.sha256(tissue.tobytes()).hexdigest(),
        "lms_imported": "torch_lms" in sys.modules,
        "stats": stats,
    }
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
