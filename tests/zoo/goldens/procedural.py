"""Values that this script and the C++ tests compute alike (tests/zoo/procedural.h), and the numbers
that a check keeps of a model."""

import json
import math

import numpy as np

PICKS = 8  # values kept of each output

# What ends a residual branch is small, so that rounding is not amplified from block to block; and
# Gated-SCNN's edges are far from 1/2, so that some are certain.
GAINS = {
    "fuse.weight": 8.0,
    ".bn3.weight": 0.25,
    ".rep.7.weight": 0.25,
    ".rep.8.weight": 0.25,
    ".convs.conv2.weight": 0.25,
    ".convs.conv3.weight": 0.25,
}


def uniform(name: str, count: int) -> np.ndarray:
    """`count` float64 values in [-1, 1), each a float32, that depend on `name` and index alone."""
    seed = 2166136261
    for byte in name.encode():
        seed = ((seed ^ byte) * 16777619) & 0xFFFFFFFF
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(seed)
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.float64) * 2.0**-23 - 1.0


def parameter(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter's float32 values: for ReLU by its fan-in; about 1 for norms; small for biases."""
    values = uniform(name, math.prod(shape))
    gain = next((gain for end, gain in GAINS.items() if name.endswith(end)), 1.0)
    if len(shape) > 1:
        values = values * (gain * math.sqrt(6.0 / math.prod(shape[1:])))
    elif name.endswith("bias"):
        values = values * 0.1
    else:
        values = (1.0 + values * 0.25) * gain
    return values.astype(np.float32).reshape(shape)


def picture(shape: tuple[int, ...]) -> np.ndarray:
    """The input: float32, between -2 and 2."""
    return (uniform("input", math.prod(shape)) * 2.0).astype(np.float32).reshape(shape)


def classes(count: int, classes: int) -> np.ndarray:
    """One class id for each of `count` pictures."""
    return np.floor((uniform("classes", count) + 1.0) / 2.0 * classes).astype(np.int64)


def labels(shape: tuple[int, ...], classes: int) -> np.ndarray:
    """Class ids, about a tenth of them 255."""
    values = uniform("labels", math.prod(shape))
    ids = np.floor((values + 1.0) / 2.0 * classes).astype(np.int64)
    ids[uniform("ignored", ids.size) > 0.8] = 255
    return ids.reshape(shape)


def binary(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """0 and 1, a quarter of them 1."""
    return (uniform(name, math.prod(shape)) > 0.5).astype(np.int64).reshape(shape)


def summary(values: np.ndarray) -> dict:
    """What is kept of an output."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    at = [i * (flat.size - 1) // (PICKS - 1) for i in range(PICKS)]
    return {
        "shape": list(np.shape(values)),
        "norm": float(np.linalg.norm(flat)),
        "projection": float(flat @ uniform("output", flat.size)),
        "values": [float(flat[i]) for i in at],
    }


def gradient(name: str, values: np.ndarray) -> list[float]:
    """What is kept of a gradient: its norm, and its product with a vector of values in [-1, 1)."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return [float(np.linalg.norm(flat)), float(flat @ uniform("projection:" + name, flat.size))]


def save(path: str, golden: dict) -> None:
    """Writes one line for each entry, numbers to ten digits."""

    def rounded(value):
        if isinstance(value, float):
            return float(f"{value:.10g}")
        if isinstance(value, dict):
            return {k: rounded(v) for k, v in value.items()}
        if isinstance(value, list):
            return [rounded(v) for v in value]
        return value

    golden = rounded(golden)
    lines = []
    for key, value in golden.items():
        if key == "gradients":
            entries = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            text = "{\n" + ",\n".join(entries) + "\n }"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
