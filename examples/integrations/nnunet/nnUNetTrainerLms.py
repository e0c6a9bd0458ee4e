"""nnU-Net's trainer with LMS:

    export nnUNet_extTrainer=examples/integrations/nnunet
    LMS_LIMIT=12GiB nnUNetv2_train 1 3d_fullres 0 -tr nnUNetTrainerLms

nnU-Net looks for it in every file of the folders that nnUNet_extTrainer names.
"""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from torch_lms.integrations.nnunet import LmsMixin


class nnUNetTrainerLms(LmsMixin, nnUNetTrainer):
    """Settings may stand here as well: ``lms = {"limit": "12GiB"}``."""
