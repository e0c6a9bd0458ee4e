"""A training with MONAI as its users write it, for lab/bench/started.py to start.

    python lab/bench/started_monai.py --epochs 12 --workers 1

Volumes are cached, cropped and flipped at random; a 3D U-Net learns their spheres with DiceCELoss
and AdamW, ten batches an epoch, and is validated after each. Weights and losses, with what each
validation has found, go to end.pt.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    RandFlipd,
    RandSpatialCropd,
    ScaleIntensityd,
)
from monai.utils import set_determinism

BATCH, BATCHES, SIDE, CROP, CLASSES = 2, 10, 40, 32, 2
_KEYS = ("image", "label")


def _volumes(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Noise with a brighter sphere somewhere, which is the label."""
    random = np.random.default_rng(seed)
    places = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"))
    found = []
    for _ in range(count):
        middle = random.uniform(SIDE * 0.3, SIDE * 0.7, 3).reshape(3, 1, 1, 1)
        inside = ((places - middle) ** 2).sum(0) < random.uniform(5, 11) ** 2
        image = random.normal(size=inside.shape) + 2 * inside
        found.append({"image": image.astype(np.float32), "label": inside.astype(np.float32)})
    return found


def _loaders(workers: int) -> tuple[DataLoader, DataLoader]:
    always = [
        EnsureChannelFirstd(_KEYS, channel_dim="no_channel"),
        ScaleIntensityd("image"),
        EnsureTyped(_KEYS),
    ]
    at_random = [
        RandSpatialCropd(_KEYS, (CROP,) * 3, random_size=False),
        *[RandFlipd(_KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)],
    ]
    train = CacheDataset(
        _volumes(BATCH * BATCHES, 0), Compose([*always, *at_random]), progress=False
    )
    validation = CacheDataset(_volumes(2, 1), Compose(always), progress=False)
    return (
        DataLoader(train, batch_size=BATCH, shuffle=True, num_workers=workers),
        DataLoader(validation, batch_size=1, num_workers=workers),
    )


def _validate(model: torch.nn.Module, loader: DataLoader) -> float:
    metric, discrete = DiceMetric(include_background=False), AsDiscrete(argmax=True, dim=1)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            told = sliding_window_inference(batch["image"], (CROP,) * 3, 1, model)
            metric(y_pred=discrete(told), y=batch["label"])
    model.train()
    return metric.aggregate().item()


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    set_determinism(0)
    train, validation = _loaders(given.workers)
    model = UNet(3, 1, CLASSES, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True)
    losses: list[float] = []
    for epoch in range(given.epochs):
        for batch in train:
            optimizer.zero_grad()
            loss = loss_of(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        losses.append(_validate(model, validation))
        print(f"epoch {epoch}: loss {losses[-2]:.4f}, Dice {losses[-1]:.4f}", flush=True)
    kept = [torch.tensor(value, dtype=torch.float64) for value in losses]
    torch.save({"weights": model.state_dict(), "losses": kept}, "end.pt")


if __name__ == "__main__":
    main()
