"""A workflow of MONAI's: python monai_trainer.py [LIMIT]"""

import sys

import torch
from monai.engines import SupervisedTrainer
from monai.handlers import TensorBoardStatsHandler, from_engine
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.utils import set_determinism

from torch_lms.integrations.monai import LmsHandler

handlers = [LmsHandler(limit=sys.argv[1])] if sys.argv[1:] else []  # before the network is made

set_determinism(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(3, 1, 2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2).to(device)
images = torch.randn(16, 1, 32, 32, 32)
data = [{"image": image, "label": (image > 0).float()} for image in images]
loss = from_engine("loss", first=True)
trainer = SupervisedTrainer(
    device=device,
    max_epochs=3,
    train_data_loader=torch.utils.data.DataLoader(data, batch_size=2),
    network=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    loss_function=DiceCELoss(to_onehot_y=True, softmax=True),
    train_handlers=[
        TensorBoardStatsHandler(log_dir="out/monai", output_transform=loss),
        *handlers,
    ],
)
trainer.run()
