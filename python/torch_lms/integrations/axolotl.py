"""axolotl. A config.yml names the plugin, and settings:

    plugins:
      - torch_lms.integrations.axolotl.LmsPlugin
    lms:
      limit: 12GiB

Each process that axolotl starts has LMS on then.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from .transformers import LmsCallback


class LmsArgs(BaseModel):
    """What the plugin adds to a config."""

    lms: dict[str, Any] | None = None
    """The settings, those of ``torch_lms.enable``."""


class LmsPlugin(BasePlugin):
    """LMS from before the model is loaded until the training ends; its scalars
    (``Session.scalars``) are logged with the loss, by TensorBoard and W&B as well. Without ``lms:``
    in the config, ``LMS_LIMIT`` and the other variables count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callback: LmsCallback | None = None

    def get_input_args(self) -> str:
        return f"{__name__}.{LmsArgs.__name__}"

    def pre_model_load(self, cfg: Any) -> None:
        if self._callback is None:  # there may be a second model, of reference
            self._callback = LmsCallback(**(cfg.lms or {}))

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        if self._callback is not None:
            self._callback.attach(trainer)
