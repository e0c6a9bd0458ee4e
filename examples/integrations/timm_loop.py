"""A loop as timm's train.py has it, with averaged weights: python timm_loop.py [LIMIT]"""

import sys

import torch
from timm import create_model
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, random_seed

from torch_lms.integrations import Session

lms = Session(limit=sys.argv[1]) if sys.argv[1:] else None  # before the model is made

random_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = create_model("resnet18", num_classes=8).to(device)
ema = ModelEmaV3(model, decay=0.9)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
schedule = CosineLRScheduler(optimizer, t_initial=24, t_in_epochs=False)
mixup = Mixup(mixup_alpha=0.2, num_classes=8)
scaler, loss_of = NativeScaler(device), SoftTargetCrossEntropy()

for step in range(1, 25):
    images = torch.randn(16, 3, 64, 64).to(device)
    images, targets = mixup(images, torch.randint(8, (16,)).to(device))
    with torch.autocast(device, torch.float16, enabled=device == "cuda"):
        loss = loss_of(model(images), targets)
    optimizer.zero_grad()
    scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
    ema.update(model, step=step)
    schedule.step_update(step)
    if step % 8 == 0:
        print(step, float(loss), lms.scalars(step) if lms is not None else {})
if lms is not None:
    lms.end()
