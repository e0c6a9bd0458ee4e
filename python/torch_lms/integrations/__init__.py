"""LMS in trainers of others, with one line each: what happens is logged where the losses are.

Its modules ``transformers`` (Trainer, TRL), ``accelerate``, ``lightning`` and ``keras`` each
import the package they are named after. ``Session`` is what they share, for other loops.
"""

from ._session import Session

__all__ = ["Session"]
