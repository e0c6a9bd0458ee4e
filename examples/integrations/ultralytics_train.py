"""YOLO with ultralytics, on images of noise: python ultralytics_train.py [LIMIT]"""

import sys
from pathlib import Path

import torch
from torchvision.utils import save_image
from ultralytics import YOLO

from torch_lms.integrations.ultralytics import attach

torch.manual_seed(0)
for kind in ("images", "labels"):
    Path("data", kind).mkdir(parents=True, exist_ok=True)
for at in range(48):
    save_image(torch.rand(3, 160, 160), f"data/images/{at:02}.png")
    Path(f"data/labels/{at:02}.txt").write_text(f"{at % 2} 0.5 0.5 0.5 0.5\n")
Path("data/data.yaml").write_text("train: images\nval: images\nnames: {0: one, 1: two}\n")

model = YOLO("yolov8n.yaml")
if sys.argv[1:]:
    attach(model, limit=sys.argv[1])
every = {"epochs": 3, "batch": 4, "nbs": 4, "imgsz": 160, "plots": False}
model.train(data="data/data.yaml", save_dir="out/ultralytics", **every)
