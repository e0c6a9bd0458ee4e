#!/usr/bin/env python3
"""Compares masks of polygons with those of pycocotools (pip install pycocotools numpy).

    check_polygons.py check ANNOTATIONS.json build/tests/datasets/lms_mask_sums
    check_polygons.py goldens ANNOTATIONS.json > tests/datasets/polygon_goldens.inc

`check` compares every annotation's mask, run by run, and every 25th also pixel by pixel as
annToMask() gives it; it fails if one differs. `goldens` writes polygons that are hard (many
parts, many points, thin, at the border, crossing themselves) with the sums of their masks.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import zlib

import numpy as np
from pycocotools import mask as masks

EVERY = 25


def rle_of(polygons: list[list[float]], height: int, width: int) -> dict:
    """As COCO.annToRLE() does it."""
    return masks.merge(masks.frPyObjects(polygons, height, width))


def changes_of(rle: dict) -> list[int]:
    """Where the mask changes, column by column, none twice and none at the end."""
    text, runs, at = rle["counts"], [], 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            digit = text[at] - 48
            value |= (digit & 31) << shift
            more = bool(digit & 32)
            at, shift = at + 1, shift + 5
            if not more and digit & 16:
                value |= -1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    changes: list[int] = []
    total = rle["size"][0] * rle["size"][1]
    for place in np.cumsum(runs).tolist():
        if changes and changes[-1] == place:
            changes.pop()
        elif place < total:
            changes.append(place)
    return changes


def pixel_sum(rle: dict) -> int:
    return zlib.crc32(np.ascontiguousarray(masks.decode(rle)).tobytes())


def check(path: str, program: str) -> int:
    data = json.load(open(path))
    images = {image["id"]: image for image in data["images"]}
    annotations = dict(enumerate(data["annotations"]))  # ids are not unique in TACO
    lines = subprocess.run(
        [program, path, str(EVERY)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    different = pixels = 0
    for line in lines:
        place, area, changes, *crc = line.split(" ")
        entry = annotations.pop(int(place))
        image = images[entry["image_id"]]
        rle = rle_of(entry["segmentation"], image["height"], image["width"])
        mine = [int(change) for change in changes.split(",") if change]
        same = mine == changes_of(rle) and int(area) == int(masks.area(rle))
        if crc:
            pixels += 1
            same = same and int(crc[0]) == pixel_sum(rle)
        if not same:
            different += 1
            print(f"annotations[{place}] differs")
    print(f"{len(lines)} annotations compared, {pixels} of them by pixels: {different} differ")
    if annotations:
        print(f"{len(annotations)} annotations were not drawn")
    return 1 if different or annotations or not lines else 0


def made_up(rng: random.Random) -> list[tuple[int, int, list[list[float]]]]:
    """Polygons that are hard to draw, from small images."""
    hard = [
        (10, 10, [[2, 2, 8, 2, 8, 8, 2, 8]]),
        (10, 10, [[2.5, 2.5, 7.5, 2.5, 7.5, 7.5, 2.5, 7.5]]),
        (10, 10, [[0, 0, 10, 0, 10, 10, 0, 10]]),
        (10, 10, [[-2, -2, 12, -2, 12, 12, -2, 12]]),
        (9, 13, [[3, 3, 3, 3, 3, 3]]),
        (9, 13, [[1, 4, 12, 4, 12, 4.1, 1, 4.1]]),
        (9, 13, [[4, 1, 4.1, 1, 4.1, 8, 4, 8]]),
        (9, 13, [[1, 1, 12, 8, 12, 1, 1, 8]]),
        (9, 13, [[0, 0, 13, 9, 0, 9], [13, 0, 13, 9, 0, 0]]),
        (9, 13, [[2, 2, 11, 2, 11, 7, 2, 7], [4, 3, 9, 3, 9, 6, 4, 6]]),
        (7, 7, [[6.3, 6.3, 7, 6.3, 7, 7, 6.3, 7]]),
        (1, 20, [[0, 0, 20, 0, 20, 1, 0, 1]]),
        (20, 1, [[0, 0, 1, 0, 1, 20, 0, 20]]),
        (12, 12, [[6, -1.9, 13.9, 6, 6, 13.9, -1.9, 6]]),
        (12, 12, [[0.1, 0.3, 0.5, 0.7, 0.9, 11.9, 11.7, 11.3, 0.2, 11.1]]),
    ]
    for _ in range(25):
        height, width = rng.randint(3, 60), rng.randint(3, 60)
        parts = []
        for _ in range(rng.randint(1, 3)):
            points: list[float] = []
            for _ in range(rng.randint(3, 12)):
                points += [
                    round(rng.uniform(-2, width + 2), rng.randint(0, 3)),
                    round(rng.uniform(-2, height + 2), rng.randint(0, 3)),
                ]
            parts.append(points)
        hard.append((height, width, parts))
    return hard


def goldens(path: str) -> int:
    data = json.load(open(path))
    images = {image["id"]: image for image in data["images"]}
    entries = data["annotations"]
    thin = sorted(entries, key=lambda a: a["area"] / max(1.0, a["bbox"][2] * a["bbox"][3]))
    parts = sorted(entries, key=lambda a: -len(a["segmentation"]))

    def coordinates(entry: dict) -> int:
        return sum(len(part) for part in entry["segmentation"])

    short = {id(e): e for e in thin[:60] + parts[:120] if coordinates(e) < 160}
    chosen = sorted(short.values(), key=lambda a: a["id"])[:24]
    cases = [
        (images[e["image_id"]]["height"], images[e["image_id"]]["width"], e["segmentation"])
        for e in chosen
    ] + made_up(random.Random(6))
    print("// Written by compare/check_polygons.py with pycocotools. For each mask: height, width,")
    print("// area, CRC-32 of the pixels, number of polygons; for each of these the number of its")
    print("// coordinates, and these. The first masks are of annotations of TACO (Proenca and")
    print("// Simoes, 2020), the others are made up.")
    print("// clang-format off")
    for height, width, polygons in cases:
        rle = rle_of(polygons, height, width)
        row = f"{height}, {width}, {int(masks.area(rle))}, {pixel_sum(rle)}, {len(polygons)},"
        for part in polygons:
            row += f" {len(part)}, " + " ".join(f"{x:.17g}," for x in part)
        while len(row) > 100:
            cut = row.rfind(" ", 0, 100)
            print(row[:cut])
            row = row[cut + 1 :]
        print(row)
    print("// clang-format on")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["check", "goldens"])
    parser.add_argument("annotations")
    parser.add_argument("program", nargs="?")
    arguments = parser.parse_args()
    if arguments.what == "goldens":
        return goldens(arguments.annotations)
    if not arguments.program:
        parser.error("check needs the program lms_mask_sums")
    return check(arguments.annotations, arguments.program)


if __name__ == "__main__":
    sys.exit(main())
