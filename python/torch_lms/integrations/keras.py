"""Keras 3 on PyTorch (``KERAS_BACKEND=torch``).

>>> model.fit(x, y, callbacks=[LmsCallback(limit="12GiB")])
"""

from __future__ import annotations

import math
from typing import Any

import keras

from ._session import PREDICTIONS, Session


class LmsCallback(keras.callbacks.Callback):
    """LMS from now until ``fit`` ends; its scalars (``Session.scalars``) are in the logs of each
    epoch: in the history, and for the callbacks after this one; predictions are NaN until there is
    a plan. On the CPU make it before the model.

    Args:
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.

    Raises:
        RuntimeError: Keras runs on another backend than PyTorch.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        if keras.config.backend() != "torch":
            raise RuntimeError(
                f"torch_lms: Keras runs on {keras.config.backend()}; set KERAS_BACKEND=torch "
                "before it is imported"
            )
        self._session = Session(**settings)
        self._steps = 0

    def on_train_begin(self, logs=None) -> None:
        self._session.begin()
        self._steps = 0
        self._session.restart(0)

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._steps += 1

    def on_epoch_end(self, epoch, logs=None) -> None:
        if logs is not None and self._session.running:
            # The same keys in every epoch: Keras's CSVLogger wants that.
            logs.update(dict.fromkeys(PREDICTIONS, math.nan) | self._session.scalars(self._steps))

    def on_train_end(self, logs=None) -> None:
        self._session.end()
