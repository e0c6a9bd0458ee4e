"""Trains a small network. Nothing in here knows of LMS: see README.md."""

import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def block():
    return [torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)]


model = torch.nn.Sequential(*block(), *block(), *block(), *block()).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randn(512, 512, device=device)

begin = time.perf_counter()
for step in range(30):
    optimizer.zero_grad()
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1:2}  loss {loss.item().hex()}  {time.perf_counter() - begin:.1f} s")
