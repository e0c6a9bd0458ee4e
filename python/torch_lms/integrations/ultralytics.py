"""ultralytics (YOLO, RT-DETR, ...), of which nothing is imported.

>>> model = YOLO("yolo11n.pt")
>>> attach(model, limit="12GiB")
"""

from __future__ import annotations

from typing import Any

from ._session import PREDICTIONS, Session


def attach(model: Any, **settings: Any) -> Session:
    """LMS from now until ``model.train()`` ends; its scalars (``Session.scalars``) are logged after
    each epoch with the learning rates: in results.csv, and by the loggers that are on in
    ultralytics' settings. A step is a batch. Predictions are 0 until there is a plan.

    Training on several GPUs is refused: ultralytics starts a process for each, without LMS.

    Args:
        model: a ``YOLO``, or another model of ultralytics.
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.
    """
    session = Session(**settings)
    batches = 0

    def begin(trainer: Any) -> None:
        nonlocal batches
        if trainer.world_size > 1:  # called in the first of those processes
            raise RuntimeError("torch_lms: ultralytics trains with LMS on one GPU only")
        batches = 0
        session.begin()

    def count(trainer: Any) -> None:
        nonlocal batches
        batches += 1

    def restart(trainer: Any) -> None:
        session.restart(batches)

    def log(trainer: Any) -> None:
        if session.running:
            # Zeros, as the file has a column for each, and its reader takes NaN for text.
            trainer.lr.update(dict.fromkeys(PREDICTIONS, 0.0) | session.scalars(batches))

    def end(trainer: Any) -> None:
        session.end()

    model.add_callback("on_pretrain_routine_start", begin)
    model.add_callback("on_train_epoch_start", restart)
    model.add_callback("on_train_batch_end", count)
    model.add_callback("on_train_epoch_end", log)
    model.add_callback("teardown", end)
    return session
