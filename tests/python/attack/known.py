"""Defects that are known and not yet mended: what would trigger them is not generated.

Each name is asked for where a program is made, or where a verdict is given. To be emptied: a
defect that has been mended is taken out of here, and the suite attacks it from then on.
"""

from __future__ import annotations

KNOWN: dict[str, str] = {
    "storage_slices": "a slice of a storage writes to a block that counts as clean",
    "small_resize": "a tensor below min_block is given back while a recipe reads it",
    "other_thread": "another thread changes the limit while a step is being planned",
    "full_tier_recompute": "a write to what many dropped blocks read, the lower tier full",
    "needless": "out of memory under a plan, where plan='off' finishes",
    "figure": "the smallest limit that an error names is below the limit in force",
    "threads_tight": "two threads whose operators fit alone, but not at once",
    "tolist": "tolist() of a conjugated or negated view reads what has just been dropped",
}

# Which lines of templates.py some of these are about.
KNOWN_LINES = {"tolist": ".tolist()"}


def is_known(name: str) -> bool:
    """Whether programs that need this are left out, or verdicts of this kind passed over."""
    return name in KNOWN
