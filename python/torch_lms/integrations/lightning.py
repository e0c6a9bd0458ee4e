"""Lightning (``lightning``, or the older ``pytorch_lightning``).

>>> trainer = Trainer(callbacks=[LmsCallback(limit="12GiB")])
"""

from __future__ import annotations

import sys
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

from ._session import Session


class LmsCallback(Callback):
    """LMS from now until ``fit`` ends; its scalars (``Session.scalars``) go to the trainer's
    loggers every ``log_every_n_steps``. Make it before the module, or at least before ``fit``.

    Args:
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.
    """

    def __init__(self, **settings: Any) -> None:
        self._session = Session(**settings)

    def setup(self, trainer, pl_module, stage: str) -> None:
        if stage == "fit":
            self._session.begin()

    def on_train_start(self, trainer, pl_module) -> None:
        self._session.restart(trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        step = trainer.global_step
        if step == 0 or step % max(1, trainer.log_every_n_steps) or not self._session.running:
            return
        scalars = self._session.scalars(step)
        # Not self.log(): it would make tensors, and with them a step that differs from the others.
        for logger in trainer.loggers if scalars else ():
            logger.log_metrics(scalars, step=step - 1)

    def teardown(self, trainer, pl_module, stage: str) -> None:
        if stage == "fit":
            self._session.end()
