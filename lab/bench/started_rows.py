"""The programs that lab/bench/started.py starts, and the tiny data that is made for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """A program, what it is started with, and what it leaves."""

    name: str
    package: str  # none: it needs no other than PyTorch
    command: str
    settings: dict[str, Any]
    compared: dict[str, tuple[str, str]]  # what: the file, and where in it
    data: Callable[[Path], None] = lambda folder: None
    scripts: dict[str, Path | None] = field(default_factory=dict)  # beside the data, by name
    before: tuple[str, ...] = ()  # what is run first, without LMS: the rest of the data
    variables: dict[str, str] = field(default_factory=dict)
    site: str = ""  # a script here that each Python of the row begins with

    @property
    def batches(self) -> int:
        return self.settings["epochs"] * self.settings["batches_per_epoch"]


# ---- data


def _draw(seed: int, side: int) -> tuple[Any, list[float]]:
    """Noise with a bright square, and where the square is: its middle and its sides, as shares."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    pixels = random.integers(0, 128, (side, side, 3), dtype=np.uint8)
    wide = int(random.integers(side // 4, side // 2))
    left, top = (int(at) for at in random.integers(0, side - wide, 2))
    pixels[top : top + wide, left : left + wide, seed % 3] = 255
    middle = [(left + wide / 2) / side, (top + wide / 2) / side]
    return Image.fromarray(pixels), [*middle, wide / side, wide / side]


def _detection(images: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for part, count in (("train", images), ("val", 16)):
            for kind in ("images", "labels"):
                (folder / "data" / kind / part).mkdir(parents=True)
            for at in range(count):
                picture, box = _draw(at, 160)
                picture.save(folder / "data" / "images" / part / f"{at:04}.png")
                label = " ".join([str(at % 3), *(f"{share:.6f}" for share in box)])
                (folder / "data" / "labels" / part / f"{at:04}.txt").write_text(f"{label}\n")
        names = ", ".join(f"{at}: {name}" for at, name in enumerate(("red", "green", "blue")))
        text = f"train: images/train\nval: images/val\nnames: {{{names}}}\n"
        (folder / "data" / "data.yaml").write_text(text)

    return make


def _classes(images: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for part, count in (("train", images), ("validation", 32)):
            for at in range(count):
                kind = folder / "data" / part / ("red", "green", "blue")[at % 3]
                kind.mkdir(parents=True, exist_ok=True)
                _draw(at, 64)[0].save(kind / f"{at:04}.png")

    return make


def _segmentation(images: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        from PIL import Image

        raw, side = folder / "data" / "raw" / "Dataset001_Squares", 64
        for kind in ("imagesTr", "labelsTr"):
            (raw / kind).mkdir(parents=True)
        for at in range(images):
            picture, (across, down, wide, _) = _draw(at, side)
            edges = (across - wide / 2, down - wide / 2, across + wide / 2, down + wide / 2)
            label = Image.new("L", (side, side))
            label.paste(1, tuple(round(side * edge) for edge in edges))
            picture.save(raw / "imagesTr" / f"square_{at:03}_0000.png")
            label.save(raw / "labelsTr" / f"square_{at:03}.png")
        facts = {
            "channel_names": {"0": "red", "1": "green", "2": "blue"},
            "labels": {"background": 0, "square": 1},
            "numTraining": images,
            "file_ending": ".png",
        }
        (raw / "dataset.json").write_text(json.dumps(facts))

    return make


# ---- rows


def _yolo(name: str, batches: int, epochs: int, nbs: int = 64) -> Row:
    told = f" nbs={nbs}" if nbs != 64 else ""
    command = (
        "yolo detect train model=yolov8n.yaml data=data/data.yaml imgsz=160 batch=8 "
        f"epochs={epochs}{told} device=cpu save_dir=out"
    )
    return Row(
        name,
        "ultralytics",
        command,
        {
            "epochs": epochs,
            "batches_per_epoch": batches,
            "nbs": nbs,
            "workers": min(8, os.cpu_count() or 1),
        },
        {
            "weights": ("weights.pt", ""),
            "averaged weights, half precision": ("out/weights/last.pt", ".model"),
        },
        _detection(8 * batches),
        site="started_weights.py",
    )


def _timm(name: str, train: Path | None, epochs: int, prefetcher: bool = True) -> Row:
    command = (
        "train.py data --model resnet18 --img-size 64 --num-classes 3 --batch-size 16 "
        f"--epochs {epochs} --model-ema --workers 1 --device cpu"
        f"{'' if prefetcher else ' --no-prefetcher'} --output out --experiment train"
    )
    last = "out/train/last.pth.tar"
    return Row(
        name,
        "timm",
        command,
        {"epochs": epochs, "batches_per_epoch": 20, "workers": 1, "prefetcher": prefetcher},
        {
            "weights": (last, ".state_dict"),
            "averaged weights": (last, ".state_dict_ema"),
            "optimizer's states": (last, ".optimizer"),
        },
        _classes(320),
        {"train.py": train},
    )


def _monai(name: str, epochs: int, workers: int) -> Row:
    return Row(
        name,
        "monai",
        f"started_monai.py --epochs {epochs} --workers {workers}",
        {"epochs": epochs, "batches_per_epoch": 10, "workers": workers},
        {"weights": ("end.pt", ".weights"), "losses": ("end.pt", ".losses")},
        scripts={"started_monai.py": _HERE / "started_monai.py"},
    )


def _nnunet(name: str, workers: int, augmentation: bool = True) -> Row:
    last = "out/*/*/fold_0/checkpoint_final.pth"
    trainer = "SeededTrainer" if augmentation else "SeededTrainerNoDA"
    return Row(
        name,
        "nnunetv2",
        f"nnUNetv2_train 1 2d 0 -tr {trainer} -device cpu",
        {"epochs": 1, "batches_per_epoch": 30, "workers": workers, "augmentation": augmentation},
        {"weights": (last, ".network_weights"), "optimizer's states": (last, ".optimizer_state")},
        _segmentation(40),
        {"trainers/started_nnunet.py": _HERE / "started_nnunet.py"},
        # The planner takes no 0.
        ("nnUNet_n_proc_DA=1 nnUNetv2_plan_and_preprocess -d 1 -c 2d -npfp 1 -np 1 --no_pbar",),
        {
            "nnUNet_raw": "data/raw",
            "nnUNet_preprocessed": "data/preprocessed",
            "nnUNet_results": "out",
            "nnUNet_extTrainer": "trainers",
            "nnUNet_n_proc_DA": str(workers),
            "nnUNet_def_n_proc": "1",
        },
    )


def _axolotl(name: str, *told: str, program: str = "-m axolotl.cli.train config.yml") -> Row:
    adapter = "--adapter lora" in told
    return Row(
        name,
        "axolotl",
        " ".join([program, *told]),
        {"epochs": 1, "batches_per_epoch": 40, "workers": 0},
        {
            "weights": (f"out/{'adapter_' if adapter else ''}model.safetensors", ""),
            "optimizer's states": ("out/checkpoint-40/optimizer.pt", ".state"),
        },
        scripts={"started_axolotl.py": _HERE / "started_axolotl.py"},
        before=("started_axolotl.py",),
        variables={
            "AXOLOTL_DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        site="started_seed.py" if adapter else "",
    )


_LORA = ("--adapter lora", "--lora_r 16", "--lora_alpha 32", "--lora_target_linear True")


def rows(timm_train: Path | None) -> list[Row]:
    """All of them; without timm's train.py its rows have no script."""
    return [
        _yolo("yolo", 40, 2, nbs=8),
        _yolo("yolo-nbs64", 40, 2),
        _yolo("yolo-nbs64-long", 40, 6),
        _yolo("yolo-short", 5, 8, nbs=8),
        _yolo("yolo-short-nbs64", 5, 8),
        _timm("timm", timm_train, 6),
        _timm("timm-no-prefetcher", timm_train, 2, prefetcher=False),
        _monai("monai-1", 12, 1),
        _monai("monai-2", 12, 2),
        _monai("monai-0", 4, 0),
        _nnunet("nnunet-0", 0),
        _nnunet("nnunet-1", 1),
        _nnunet("nnunet-no-augmentation", 0, augmentation=False),
        _axolotl("axolotl"),
        _axolotl("axolotl-launcher", program="axolotl train config.yml --launcher python"),
        _axolotl("axolotl-packed", "--sample_packing True", "--sequence_len 512"),
        _axolotl("axolotl-lora", *_LORA),
    ]
