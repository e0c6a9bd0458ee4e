"""Settings: one table of names, variables, defaults and parsers.

Argument beats what is in force, which beats variable, which beats default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

import torch

from ._machine import default_directory, device_memory, tier_below

AUTOMATIC = -1  # what the operators take for "find it out"

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*|%)\s*")
_AMOUNT_HELP = "bytes as an int, or a string such as '12GiB', '800MB' or '50%'"
_LARGEST = 2**63 - 1
_LOG_LEVELS = ("off", "info", "debug")


def parse_bytes(value: Any, total: Callable[[], int] | None = None, least: int = 1) -> int:
    """Bytes from an int or a string (``12GiB``, ``1.5GB``, ``4096``, ``50%``).

    Args:
        value: the amount. Units are powers of 1000 (KB, MB, ...) or of 1024 (KiB, MiB, ..., and
            K, M, ..., as Docker and Slurm have it).
        total: gives the bytes that 100 % stands for; without it a percentage is an error.
        least: the smallest amount that is accepted.

    Raises:
        ValueError: what was given is not an amount, or is out of range.
    """
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not an amount: give {_AMOUNT_HELP}")
        number, unit = match.groups()
        if unit == "%":
            if total is None:
                raise ValueError(f"{value!r}: a percentage is not possible here")
            if not 0 < float(number) <= 100:
                raise ValueError(f"{value!r} is not between 0% and 100%")
            result = int(total() * float(number) / 100)
        else:
            scale = _UNITS.get(unit.upper())
            if scale is None:
                raise ValueError(
                    f"{value!r} has the unknown unit {unit!r}: use B, KiB, MiB, GiB, TiB (or K, M, "
                    "G, T), KB, MB, GB, TB or %"
                )
            if scale == 1 and "." in number:
                raise ValueError(f"{value!r} is not a whole number of bytes; or was '%' meant?")
            result = int(number) * scale if "." not in number else int(float(number) * scale)
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{value!r} is not an amount: give {_AMOUNT_HELP}")
    else:
        result = value.__index__()
    if not least <= result <= _LARGEST:
        raise ValueError(f"{value!r} is out of range: at least {least} B is needed")
    return result


def parse_flag(value: Any) -> bool:
    """A bool from a bool, 0/1, or one of 1/0, true/false, yes/no, on/off (any case)."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{value!r} is not a switch: use 1 or 0, true or false, yes or no, on or off")


def parse_stress(value: Any) -> bool | str:
    """``"drop"``, or what parse_flag() takes."""
    return "drop" if value == "drop" else parse_flag(value)


def parse_log(value: Any) -> str:
    """One of ``off``, ``info``, ``debug``."""
    text = str(value).strip().lower()
    if text not in _LOG_LEVELS:
        raise ValueError(f"{value!r} is not a log level: use {', '.join(_LOG_LEVELS)}")
    return text


def default_device() -> str:
    """What is managed when nobody says: CUDA's current device where there is one, else the CPU.

    A launcher (torchrun, accelerate) starts a process for each GPU, and the script makes its own
    the current one later: as long as that is the first, it is the one of ``LOCAL_RANK``.
    """
    if not torch.cuda.is_available():
        return "cpu"
    current, rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    if current == 0 and rank.isdigit() and int(rank) < torch.cuda.device_count():
        current = int(rank)
    return f"cuda:{current}"


def parse_device(value: Any) -> str:
    """The device's full name: ``cpu``, or ``cuda:N`` of a device that is present.

    ``None`` is ``default_device()``; an int is a CUDA device.
    """
    if value is None:
        value = default_device()
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, bool):
        raise ValueError(f"{value!r} is not a device: use 'cpu', 'cuda' or 'cuda:N'")
    try:
        if isinstance(text, int) or (isinstance(text, str) and text.isdigit()):
            device = torch.device("cuda", int(text))
        else:
            device = torch.device(text)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{value!r} is not a device: use 'cpu', 'cuda' or 'cuda:N'") from error
    # PyTorch's index has eight bits, and takes as many of a larger one.
    named = str(text).partition(":")[2] if isinstance(text, str) else ""
    wanted = named or (str(text) if str(text).isdigit() else "")
    if wanted and wanted != str(device.index):
        raise ValueError(f"device {value!r} does not exist")
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise ValueError(f"device {str(device)!r} is not supported: use 'cpu', 'cuda' or 'cuda:N'")
    if not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r}: PyTorch sees no CUDA device here; use 'cpu'")
    index = torch.cuda.current_device() if device.index is None else device.index
    if not 0 <= index < torch.cuda.device_count():
        raise ValueError(
            f"device {str(device)!r} does not exist: there are {torch.cuda.device_count()}"
        )
    return f"cuda:{index}"


def parse_directory(value: Any) -> str:
    """An absolute path of a directory that exists and can be written."""
    try:
        path = os.path.abspath(os.fspath(value))
    except TypeError as error:
        raise ValueError(f"{value!r} is not a path") from error
    if not os.path.isdir(path):
        raise ValueError(f"{path!r} is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"{path!r} cannot be written")
    return path


def parse_plan(value: Any) -> str:
    """'on', 'off' or 'now'; flags are understood as the first two."""
    if isinstance(value, str) and value.strip().lower() == "now":
        return "now"
    try:
        return "on" if parse_flag(value) else "off"
    except ValueError:
        raise ValueError(f"{value!r} is not one of on, off, now") from None


def parse_slices(value: Any) -> str:
    """'auto', 'parts', 'all', 'off', 'always', 'in_place' or 'chains'; flags: auto and off."""
    ways = ("auto", "parts", "all", "always", "in_place", "chains")
    if isinstance(value, str) and value.strip().lower() in ways:
        return value.strip().lower()
    try:
        return "auto" if parse_flag(value) else "off"
    except ValueError:
        raise ValueError(f"{value!r} is not one of auto, off, {', '.join(ways[1:])}") from None


def parse_seconds(value: Any) -> float:
    """A number of seconds, at least 0."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number of seconds") from None
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} is not a number of seconds from 0")
    return seconds


@dataclass(frozen=True)
class Setting:
    """One row of the table: ``parse(value, earlier)`` sees the rows above as ``earlier``."""

    name: str
    variable: str
    default: Any
    parse: Callable[[Any, Mapping[str, Any]], Any]
    default_text: str  # for readers
    doc: str


def parse_limit(value: Any, total: Callable[[], int]) -> int:
    """Bytes of a limit, as parse_bytes(). Below 64 KiB the unit has to be said: whoever writes 12
    means 12 GiB, and 12000 is some 12000 MiB."""
    count = parse_bytes(value, total)
    without_unit = not isinstance(value, str) or value.strip().isdigit()
    if count < 2**16 and without_unit:
        meant = f"{count}GiB" if count < 1024 else f"{count}MiB"
        raise ValueError(
            f"{value!r} is {count} bytes, which holds no tensor; was '{meant}' meant? "
            f"('{count}B' if not)"
        )
    return count


def _limit(value: Any, earlier: Mapping[str, Any]) -> int:
    return parse_limit(value, lambda: device_memory(earlier["device"]))


def _host_limit(value: Any, earlier: Mapping[str, Any]) -> int:
    return parse_limit(value, lambda: tier_below(earlier["device"], earlier["directory"]))


def _recompute(value: Any, earlier: Mapping[str, Any]) -> bool:
    # On the CPU code that PyTorch does not see may read tensors where they lie: what has been
    # evicted can still be read there, what has been dropped cannot.
    return earlier["device"] != "cpu" if value == "auto" else parse_flag(value)


_DEFERRED = ("auto", "chosen", "updates", "all", "random")


def parse_deferred(value: Any) -> str:
    """'true', 'false' (flags are understood), or one of ``_DEFERRED``."""
    if isinstance(value, str) and value.strip().lower() in _DEFERRED:
        return value.strip().lower()
    try:
        return str(parse_flag(value)).lower()
    except ValueError:
        raise ValueError(f"{value!r} is not one of true, false, {', '.join(_DEFERRED)}") from None


def parse_cache(value: Any) -> str:
    """'auto', 'off' or a folder, which need not be there yet; flags are understood as the first
    two."""
    try:
        return "auto" if value == "auto" or parse_flag(value) else "off"
    except ValueError:
        if isinstance(value, (str, os.PathLike)) and str(value).strip():
            return os.path.abspath(os.path.expanduser(value))
        raise ValueError(f"{value!r} is not a folder, auto or off") from None


# The arguments of enable(), in the order of reading; docs/reference.md is made from it.
TABLE: tuple[Setting, ...] = (
    Setting("device", "LMS_DEVICE", None, lambda v, _: parse_device(v),
            "CUDA's current device (under a launcher that of `LOCAL_RANK`), else the CPU",
            "what to manage: 'cuda', 'cuda:1' or 'cpu'"),
    Setting("directory", "LMS_DIR", None, lambda v, _: parse_directory(v),
            "the first of TMPDIR and /var/tmp on a disk",
            "where the file below CPU tensors lives"),
    Setting("limit", "LMS_LIMIT", None, _limit,
            "what is free, less a margin",
            "memory to stay below on the device: bytes, '12GiB', '50%'"),
    Setting("host_limit", "LMS_HOST_LIMIT", None, _host_limit,
            "4/5 of the available memory; for the file, 9/10 of the free disk; divided by the "
            "processes that a launcher has started here",
            "memory to stay below in the tier underneath: bytes, '64GiB', '80%'"),
    Setting("min_block", "LMS_MIN_BLOCK", "1MiB", lambda v, _: parse_bytes(v, least=0),
            "1MiB",
            "smaller tensors stay where they are"),
    Setting("stress", "LMS_STRESS", False, lambda v, _: parse_stress(v),
            "off",
            "for tests, slow: evict everything after every operator; drop: and drop what can be "
            "computed again instead"),
    Setting("verify", "LMS_VERIFY", False, lambda v, _: parse_flag(v),
            "off",
            "for tests, slow: compare a block that leaves without a copy with the copy that is "
            "there"),
    Setting("plan", "LMS_PLAN", "on", lambda v, _: parse_plan(v),
            "on",
            "learn the training steps and plan their copies; off: blocks move when they must; now: "
            "plan while the step waits, for tests"),
    Setting("plan_seconds", "LMS_PLAN_SECONDS", 2.0, lambda v, _: parse_seconds(v),
            "2",
            "most time to search for a better plan, in a thread beside the training, for each kind "
            "of step, with the times of planned steps (the first plan takes a tenth of a second of "
            "it, so that steps are planned soon)"),
    Setting("recompute", "LMS_RECOMPUTE", "auto", _recompute,
            "auto: on GPUs",
            "plans may let go of what is cheaper to compute again than to copy; off on the CPU, "
            "where code that PyTorch does not see may read tensors where they lie: what is evicted "
            "can be read there, what is dropped cannot"),
    Setting("plan_cache", "LMS_PLAN_CACHE", "auto", lambda v, _: parse_cache(v),
            "auto: lms/plans in $XDG_CACHE_HOME or ~/.cache",
            "folder in which plans are kept (64 MiB at most), so that the same training begins "
            "planned when it is started again; off: they are forgotten"),
    Setting("deferred_updates", "LMS_DEFERRED_UPDATES", "auto", lambda v, _: parse_deferred(v),
            "auto: on GPUs",
            "an optimizer's updates may run later than they are called, before anybody looks at "
            "what they write or changes what they read: large operators over lists wait for those "
            "that follow, and run weight by weight; some that a plan chooses wait until the weight "
            "is used; chosen: these alone; for tests: updates (all of "
            "them wait), all (every operator in place that can), random (and some run at random)"),
    Setting("other_algorithms", "LMS_OTHER_ALGORITHMS", False, lambda v, _: parse_flag(v),
            "off",
            "where the algorithm that cuDNN chooses for a convolution finds no room for what it "
            "needs of its own, on the device or, where it may lie there, in host memory, the next "
            "one takes its place, as in PyTorch without LMS, with other bits than on a larger "
            "device; off: an error, with the limit that works"),
    Setting("slices", "LMS_SLICES", "auto", lambda v, _: parse_slices(v),
            "auto",
            "operators whose parts are independent run part by part, with the same bits: parts: "
            "where they do not fit as a whole; all: those that cannot be cut work on tensors where "
            "they lie in host memory, as the last resort, which is slow, and what lies between a "
            "language model's logits and their gradient is made row by row where it is used; auto: "
            "all; off: never; always, in_place, chains: the first, second or third wherever it can "
            "be, for tests"),
    Setting("log", "LMS_LOG", "off", lambda v, _: parse_log(v),
            "off",
            "what to say on standard error: off, info or debug"),
    Setting("monitor", "LMS_MONITOR", False, lambda v, _: parse_flag(v),
            "off",
            "write once a second what LMS does to a small file of the user's own, for `lms top`"),
)  # fmt: skip

# Settings in force, resolved: bytes are ints, AUTOMATIC meaning that the library finds it out.
Settings = make_dataclass("Settings", [(row.name, Any) for row in TABLE], frozen=True)


def as_options(settings: Any) -> dict[str, str]:
    """What the operator ``lms::enable`` takes of resolved settings: options by name, as text."""
    values = {row.name: getattr(settings, row.name) for row in TABLE}
    del values["log"], values["monitor"]  # Python's own
    values["drop"] = values["stress"] == "drop"
    values["stress"] = bool(values["stress"])
    values["plan_at_once"] = values["plan"] == "now"
    values["plan"] = values["plan"] != "off"
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }


# Variables that are not settings of enable(): where libraries are, and what the build looks at.
OTHER_VARIABLES = ("LMS_LIBRARY", "LMS_TORCH_DIR", "LMS_COMMIT", "LMS_HIGHS")


def _suggest(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def check_names(unknown: Mapping[str, Any]) -> None:
    """Raises TypeError if any argument is left over, naming the valid ones."""
    valid = [setting.name for setting in TABLE]
    for name in unknown:
        raise TypeError(
            f"torch_lms: unknown setting {name!r}{_suggest(name, valid)} "
            f"(valid: {', '.join(valid)})"
        )


def check_variables(environ: Mapping[str, str]) -> None:
    """Raises ValueError if an ``LMS_*`` variable is unknown, naming the valid ones."""
    valid = [setting.variable for setting in TABLE] + list(OTHER_VARIABLES)
    for name in environ:
        if name.startswith("LMS_") and name not in valid:
            raise ValueError(
                f"torch_lms: unknown environment variable {name}{_suggest(name, valid)} "
                f"(valid: {', '.join(valid)})"
            )


def resolve(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    in_force: Callable[[str], Any] | None = None,
) -> Any:
    """Settings from arguments, then those in force, then variables, then defaults. None means "not
    given".

    Args:
        arguments: by name.
        environ: the variables; by default the process's own.
        in_force: gives a device's present settings, or None if it is not managed.

    Raises:
        TypeError: an unknown argument name.
        ValueError: an unknown ``LMS_*`` variable, or a bad value; the message names the source.
    """
    environ = os.environ if environ is None else environ
    check_names({k: v for k, v in arguments.items() if k not in {s.name for s in TABLE}})
    check_variables(environ)
    values: dict[str, Any] = {}
    before = None
    for setting in TABLE:
        given = arguments.get(setting.name)
        source = setting.name
        if given is None and before is not None:
            values[setting.name] = getattr(before, setting.name)
            continue
        if given is None and environ.get(setting.variable, "") != "":
            given, source = environ[setting.variable], setting.variable
        if given is None:
            given = setting.default
        if given is None and setting.name == "directory":
            values["directory"] = default_directory()
            continue
        if given is None and setting.name != "device":
            values[setting.name] = AUTOMATIC
            continue
        try:
            values[setting.name] = setting.parse(given, values)
        except ValueError as error:
            raise ValueError(f"torch_lms: {source}: {error} ({setting.doc})") from None
        if setting.name == "device" and in_force is not None:
            before = in_force(values["device"])
    return Settings(**values)
