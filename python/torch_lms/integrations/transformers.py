"""The Trainer of Hugging Face, and those of TRL.

>>> trainer = Trainer(model, arguments, callbacks=[LmsCallback(limit="12GiB")])
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback

from ._session import Session


class LmsCallback(TrainerCallback):
    """LMS from now until the training ends; its scalars (``Session.scalars``) are logged with the
    loss. Make it before the model, or at least before the Trainer, which moves it to the device.

    The Trainer runs its own loggers (TensorBoard, W&B) before ``callbacks``: ``attach(trainer)``
    puts this one before them. Without it, progress, ``state.log_history`` and callbacks after this
    one have the scalars, those loggers do not.

    Args:
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.
    """

    def __init__(self, **settings: Any) -> None:
        self._session = Session(**settings)

    def attach(self, trainer: Trainer) -> LmsCallback:
        """Puts itself first among the callbacks of ``trainer``, if need be by adding itself."""
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(other for other in callbacks if other is not self)]
        return self

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        self._session.begin()
        self._session.restart(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs: Any) -> None:
        of_training = logs and not any(name.startswith(("eval_", "train_")) for name in logs)
        if of_training and self._session.running:
            scalars = self._session.scalars(state.global_step)
            logs.update(scalars)
            if state.log_history:
                state.log_history[-1].update(scalars)

    def on_train_end(self, args, state, control, **kwargs: Any) -> None:
        self._session.end()
