"""nnU-Net.

>>> class nnUNetTrainerLms(LmsMixin, nnUNetTrainer):
...     lms = {"limit": "12GiB"}

nnU-Net finds it by ``-tr nnUNetTrainerLms`` in a file of the folder that the variable
``nnUNet_extTrainer`` names.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ._session import Session


class LmsMixin:
    """Put before one of nnU-Net's trainers: LMS from before its network is made until its training
    ends. The scalars (``Session.scalars``) of each epoch's training are in nnU-Net's log, and in
    W&B where nnU-Net logs there.
    """

    lms: ClassVar[dict[str, Any]] = {}
    """The settings, those of ``torch_lms.enable``. Without any, ``LMS_LIMIT`` and the other
    variables count, and LMS stays as it is where it is on."""

    _session: Session | None = None

    # No __init__: nnU-Net keeps the arguments that its own names.
    def initialize(self) -> None:
        if self._session is None:
            self._session = Session(**self.lms)
        super().initialize()

    def on_train_start(self) -> None:
        if self._session is not None:
            self._session.begin()
        super().on_train_start()

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._session.restart(0)

    def on_train_epoch_end(self, train_outputs: list[dict]) -> None:
        super().on_train_epoch_end(train_outputs)
        scalars = self._session.scalars(len(train_outputs)) if self._session.running else {}
        if not scalars:
            return
        told = ", ".join(f"{name} {value:.4g}" for name, value in scalars.items())
        self.print_to_log_file(told)
        # Not its own logger, which admits no other names than its own.
        for logger in getattr(self.logger, "loggers", ()):
            for name, value in scalars.items():
                logger.log(name, value, self.current_epoch)

    def on_train_end(self) -> None:
        super().on_train_end()
        self._session.end()
