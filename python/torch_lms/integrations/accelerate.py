"""Hugging Face accelerate.

>>> accelerator = Accelerator(log_with="tensorboard")
>>> attach(accelerator, limit="12GiB")
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from ._session import Session


def attach(accelerator: Accelerator, **settings: Any) -> Session:
    """LMS from now until ``accelerator.end_training()``. Call it before the model is made.

    What ``accelerator.log(values, step=...)`` logs has the scalars of ``Session.scalars`` beside
    its values, where a step is given and training has gone on since the last.

    Args:
        accelerator: the one of the training loop.
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.
    """
    session = Session(**settings)
    log, end_training = accelerator.log, accelerator.end_training

    def log_too(values: dict, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        scalars = session.scalars(step) if step is not None and session.running else {}
        return log({**values, **scalars}, step, *args, **kwargs)

    def end_too() -> Any:
        session.end()
        return end_training()

    accelerator.log, accelerator.end_training = log_too, end_too
    return session
