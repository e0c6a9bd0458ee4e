"""nnU-Net's trainers as lab/bench/started.py has nnUNetv2_train use them: seeded, soon through.

nnU-Net seeds nothing, and its loaders' processes draw from the system: no two trainings are alike.
It finds these classes (-tr SeededTrainer) by the variable nnUNet_extTrainer. A loader has to have
one process, or none (nnUNet_n_proc_DA): of several, batches arrive in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import (
    NonDetMultiThreadedAugmenter,
)
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoDA import (
    nnUNetTrainerNoDA,
)


class SeededTrainer(nnUNetTrainer):
    """One epoch, of thirty iterations and two that validate it."""

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device,
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = 1
        self.num_iterations_per_epoch = 30
        self.num_val_iterations_per_epoch = 2
        np.random.seed(0)
        torch.manual_seed(0)

    def get_dataloaders(self) -> tuple[Any, Any]:
        """Those of nnU-Net; what has a process begins anew from a seed."""
        loaders = super().get_dataloaders()
        for seed, loader in enumerate(loaders):
            if isinstance(loader, NonDetMultiThreadedAugmenter):
                loader.seeds = [seed]
                loader.restart()
        return loaders

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """Nothing: patches that are predicted alike would count among the steps of training."""


class SeededTrainerNoDA(SeededTrainer, nnUNetTrainerNoDA):
    """The same without augmentation."""
