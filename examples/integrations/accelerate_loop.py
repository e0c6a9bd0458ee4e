"""A training loop of one's own with accelerate: python accelerate_loop.py [LIMIT]"""

import sys
from itertools import pairwise

import torch
from accelerate import Accelerator

from torch_lms.integrations.accelerate import attach

accelerator = Accelerator(log_with="all", project_dir="out/accelerate")
if sys.argv[1:]:
    attach(accelerator, limit=sys.argv[1])  # before the model is made
accelerator.init_trackers("example")

torch.manual_seed(0)
width = [512, 2048, 512, 2048, 512, 2048, 512]
model = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in pairwise(width)))
data = torch.utils.data.DataLoader(torch.randn(24 * 128, 512), batch_size=128)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

for step, batch in enumerate(data, 1):
    loss = (model(batch) - batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 0:
        accelerator.log({"loss": loss.item()}, step=step)
accelerator.end_training()
