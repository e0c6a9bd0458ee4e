"""Defects that are known and not yet mended: what would trigger them is not generated.

Each name is asked for where a program is made, or where a verdict is given. To be emptied: a
defect that has been mended is taken out of here, and the suite attacks it from then on.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {}

# Which lines of templates.py some of these are about.
KNOWN_LINES: dict[str, str] = {}


def is_known(name: str) -> bool:
    """Whether programs that need this are left out, or verdicts of this kind passed over."""
    return name in KNOWN
