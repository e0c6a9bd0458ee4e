"""README's picture, from the records: what one training step takes, by method.

Without arguments it writes docs/pictures/at-a-glance.svg.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "pictures" / "at-a-glance.svg"
STEP = "resnet50_bf16_256x224"
ROWS = [
    ("plain PyTorch", "plain", "#8a8f98"),
    ("LMS, half the memory", "lms.2x", "#2f6fde"),
    ("LMS, a quarter", "lms.4x", "#2f6fde"),
    ("checkpointing", "checkpoint", "#c9a227"),
    ("save_on_cpu", "save_on_cpu", "#c9a227"),
]
MEMORY_AT, TIME_AT, PANEL, TOP, ROW, BAR = 190, 470, 200, 62, 30, 18
MOST_MS = 100  # what the panel of times holds; a longer bar is cut off


def record(method: str) -> dict:
    path = ROOT / "lab" / "results" / "recompute" / f"{STEP}.{method}.json"
    return json.loads(path.read_text())


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{words}</text>'


def bar(x: float, y: float, share: float, color: str, label: str) -> str:
    """A bar of at most the panel's width; one that would be wider ends in a gap."""
    width = PANEL * min(share, 1.0)
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{BAR}" fill="{color}"/>']
    if share > 1:
        gap = f"M{x + PANEL - 22:g} {y + BAR + 2:g}l8 -{BAR + 4}m6 0l-8 {BAR + 4}"
        parts.append(f'<path d="{gap}" stroke="#fff" stroke-width="3"/>')
    parts.append(text(x + width + 6, y + BAR - 4, label))
    return "".join(parts)


def svg() -> str:
    """The picture."""
    records = [(name, record(method), color) for name, method, color in ROWS]
    most = max(run["allocated_peak"] for _, run, _ in records)
    height = TOP + ROW * len(ROWS) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" '
        'font-family="sans-serif" font-size="13" fill="#333">',
        f'<rect width="760" height="{height}" fill="#fff"/>',
        text(14, 24, "One training step of ResNet50, 256 images, on an H200", 'font-size="15"'),
        text(MEMORY_AT, 50, "memory on the GPU", 'font-weight="bold"'),
        text(TIME_AT, 50, "time", 'font-weight="bold"'),
    ]
    for at, (name, run, color) in enumerate(records):
        y = TOP + ROW * at
        peak, ms = run["allocated_peak"], run["step_ms"]
        lines += [
            text(MEMORY_AT - 10, y + BAR - 4, name, 'text-anchor="end"'),
            bar(MEMORY_AT, y, peak / most, color, f"{peak / 2**30:.1f} GiB"),
            bar(TIME_AT, y, ms / MOST_MS, color, f"{ms:.0f} ms"),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    OUT.write_text(svg())
