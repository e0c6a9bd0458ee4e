"""LMS in trainers of others, with one line each: what happens is logged where the losses are.

Its modules ``transformers`` (Trainer, TRL), ``accelerate``, ``lightning``, ``keras`` and
``axolotl`` each import the package they are named after, ``monai`` PyTorch-Ignite, and
``ultralytics`` and ``nnunet`` nothing. ``Session`` is what they share, for other loops.
"""

from ._session import Session

__all__ = ["Session"]
