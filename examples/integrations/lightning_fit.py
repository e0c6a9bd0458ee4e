"""Lightning: python lightning_fit.py [LIMIT]"""

import sys
from itertools import pairwise

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything

from torch_lms.integrations.lightning import LmsCallback

callbacks = [LmsCallback(limit=sys.argv[1])] if sys.argv[1:] else []  # before the model is made


class Autoencoder(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        width = [512, 2048, 512, 2048, 512, 2048, 512]
        self.net = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in pairwise(width)))

    def training_step(self, batch, index):
        loss = (self.net(batch) - batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


seed_everything(0)
model = Autoencoder()
data = torch.utils.data.DataLoader(torch.randn(24 * 128, 512), batch_size=128)
every = {"max_epochs": 1, "log_every_n_steps": 8}
trainer = Trainer(**every, callbacks=callbacks, default_root_dir="out/lightning")
trainer.fit(model, data)
