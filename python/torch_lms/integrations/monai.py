"""MONAI's workflows, and other engines of PyTorch-Ignite.

>>> SupervisedTrainer(..., train_handlers=[LmsHandler(limit="12GiB"), StatsHandler()])
"""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events

from ._session import PREDICTIONS, Session


class LmsHandler:
    """LMS from now until the engine has run; its scalars (``Session.scalars``) are in
    ``engine.state.metrics`` when an epoch has completed: StatsHandler, TensorBoardStatsHandler and
    others log them, wherever they stand in the list. Make it before the network.

    Args:
        settings: those of ``torch_lms.enable``. Without any, LMS stays as it is where it is on.
    """

    def __init__(self, **settings: Any) -> None:
        self._session = Session(**settings)

    def attach(self, engine: Engine) -> None:
        """Follows what this engine runs, which is to be the one that trains."""
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.EPOCH_STARTED, self._restart)
        # Before any handler of the epoch's end, where its length is known.
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._log_if_last)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._log)
        engine.add_event_handler(Events.COMPLETED, self._end)

    def _begin(self, engine: Engine) -> None:
        self._session.begin()

    def _restart(self, engine: Engine) -> None:
        self._session.restart(engine.state.iteration)

    def _log_if_last(self, engine: Engine) -> None:
        length = engine.state.epoch_length
        if length and engine.state.iteration % length == 0:
            self._log(engine)

    def _log(self, engine: Engine) -> None:
        scalars = self._session.scalars(engine.state.iteration) if self._session.running else {}
        if scalars:
            for name in PREDICTIONS:
                engine.state.metrics.pop(name, None)
            engine.state.metrics.update(scalars)

    def _end(self, engine: Engine) -> None:
        self._session.end()
