"""Settings: precedence, amounts, devices, and errors that name what is valid."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

import torch_lms
from torch_lms import _machine, _settings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("1B", 1),
        ("2KiB", 2048),
        ("2 kb", 2000),
        ("1.5GiB", 3 << 29),
        (".5MB", 500_000),
        ("3TiB", 3 << 40),
        ("12G", 12 << 30),
        ("12GB", 12 * 10**9),
        ("12GiB", 12 << 30),
        ("512m", 512 << 20),
        ("50%", 500),
        ("100%", 1000),
    ],
)
def test_amounts(given: int | str, expected: int) -> None:
    assert _settings.parse_bytes(given, lambda: 1000) == expected


@pytest.mark.parametrize(
    "given",
    ["", "many", "12 XB", "-1", -1, 0, "0", "0%", "101%", 0.5, "0.5", True, None, "1e9", 2**70],
)
def test_bad_amounts(given: object) -> None:
    with pytest.raises(ValueError):
        _settings.parse_bytes(given, lambda: 1000)


@pytest.mark.parametrize("given", [12, "12", " 12 ", 12000])
@pytest.mark.parametrize("name", ["limit", "host_limit"])
def test_a_limit_of_a_few_bytes_is_a_forgotten_unit(name: str, given: int | str) -> None:
    number = str(given).strip()
    unit = "MiB" if given == 12000 else "GiB"
    with pytest.raises(ValueError, match=f"{name}: .* is {number} bytes.*'{number}{unit}' meant"):
        torch_lms.enable(**{name: given}, device="cpu")
    assert not torch_lms.is_enabled()
    assert _settings.parse_limit(f"{number}B", lambda: 1000) == int(number)
    assert _settings.parse_limit(f"{number}GiB", lambda: 1000) == int(number) << 30
    assert _settings.parse_limit("50%", lambda: 1000) == 500
    assert _settings.parse_limit(1 << 16, lambda: 1000) == 1 << 16


def test_large_amount_is_exact() -> None:
    assert _settings.parse_bytes("9007199254740993") == 9007199254740993


def test_precedence() -> None:
    environ = {"LMS_LIMIT": "2GiB", "LMS_MIN_BLOCK": "4KiB", "LMS_DEVICE": "cpu"}
    settings = _settings.resolve({"limit": "1GiB"}, environ)
    assert settings.limit == 1 << 30  # argument beats variable
    assert settings.min_block == 4096  # variable beats default
    assert settings.host_limit == _settings.AUTOMATIC
    assert _settings.resolve({"device": "cpu"}, {}).min_block == 1 << 20
    assert _settings.resolve({"stress": False}, {"LMS_STRESS": "1"}).stress is False
    assert _settings.resolve({}, {"LMS_STRESS": "yes"}).stress is True
    assert _settings.resolve({"stress": "drop"}, {}).stress == "drop"
    assert _settings.resolve({"device": "cpu"}, {"LMS_LIMIT": ""}).limit == _settings.AUTOMATIC


def test_what_is_in_force_beats_variables_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """``enable(limit=...)``, which errors recommend, changes the limit alone."""
    monkeypatch.setenv("LMS_SLICES", "parts")
    given = {"slices": "off", "other_algorithms": True, "recompute": True, "plan_seconds": 1.5}
    try:
        torch_lms.enable(device="cpu", limit="64MiB", min_block=4096, stress=True, **given)
        before = torch_lms._in_force["cpu"]
        torch_lms.enable(device="cpu", limit="65MiB")
        after = torch_lms._in_force["cpu"]
        assert after == dataclasses.replace(before, limit=65 << 20)
        torch_lms.enable(device="cpu", slices="auto", stress=False)
        assert torch_lms._in_force["cpu"] == dataclasses.replace(
            after, slices="auto", stress=False
        )
        with torch_lms.managed(device="cpu", recompute=False):
            assert not torch_lms._in_force["cpu"].recompute
            assert torch_lms._in_force["cpu"].other_algorithms
        assert torch_lms._in_force["cpu"].recompute
        torch_lms.disable("cpu")
        torch_lms.enable(device="cpu", limit="64MiB")
        assert torch_lms._in_force["cpu"].slices == "parts"
        assert not torch_lms._in_force["cpu"].other_algorithms
    finally:
        torch_lms.disable()


def test_the_cpu_recomputes_only_when_it_is_told_to() -> None:
    assert _settings.resolve({"device": "cpu"}, {}).recompute is False
    assert _settings.resolve({"device": "cpu"}, {"LMS_RECOMPUTE": "auto"}).recompute is False
    assert _settings.resolve({"device": "cpu", "recompute": True}, {}).recompute is True


def test_every_variable_is_read(tmp_path: Path) -> None:
    values = {
        "LMS_LIMIT": "3MB",
        "LMS_HOST_LIMIT": "5MB",
        "LMS_MIN_BLOCK": "7B",
        "LMS_DEVICE": "cpu",
        "LMS_DIR": str(tmp_path),
        "LMS_STRESS": "on",
        "LMS_VERIFY": "true",
        "LMS_PLAN": "now",
        "LMS_PLAN_SECONDS": "0.5",
        "LMS_RECOMPUTE": "on",
        "LMS_PLAN_CACHE": str(tmp_path / "plans"),
        "LMS_DEFERRED_UPDATES": "ALL",
        "LMS_OTHER_ALGORITHMS": "on",
        "LMS_SLICES": "always",
        "LMS_LOG": "debug",
        "LMS_MONITOR": "1",
    }
    assert set(values) == {setting.variable for setting in _settings.TABLE}
    assert _settings.resolve({}, values) == _settings.Settings(
        device="cpu",
        limit=3_000_000,
        host_limit=5_000_000,
        min_block=7,
        directory=str(tmp_path),
        stress=True,
        verify=True,
        plan="now",
        plan_seconds=0.5,
        recompute=True,
        plan_cache=str(tmp_path / "plans"),
        deferred_updates="all",
        other_algorithms=True,
        slices="always",
        log="debug",
        monitor=True,
    )


@pytest.mark.parametrize(
    ("given", "folder"),
    [("auto", "auto"), (True, "auto"), ("on", "auto"), ("off", "off"), (False, "off"),
     ("", "off"), ("/a/b", "/a/b"), ("~/c", os.path.expanduser("~/c")),
     ("d", os.path.abspath("d"))],
)  # fmt: skip
def test_plan_caches(given: object, folder: str) -> None:
    assert _settings.parse_cache(given) == folder


@pytest.mark.parametrize(
    ("given", "mode"),
    [("auto", "auto"), (True, "true"), ("off", "false"), (0, "false"), ("Random", "random")],
)
def test_deferred_updates(given: object, mode: str) -> None:
    assert _settings.parse_deferred(given) == mode


def test_bad_deferred_updates() -> None:
    with pytest.raises(ValueError, match="deferred_updates"):
        _settings.resolve({"deferred_updates": "later", "device": "cpu"}, {})


def test_a_bad_plan_cache() -> None:
    with pytest.raises(ValueError, match="plan_cache"):
        _settings.resolve({"plan_cache": 3.5, "device": "cpu"}, {})


@pytest.mark.parametrize(
    ("given", "plan"), [("on", "on"), ("off", "off"), (True, "on"), (0, "off"), (" NOW ", "now")]
)
def test_plans(given: object, plan: str) -> None:
    assert _settings.parse_plan(given) == plan


@pytest.mark.parametrize(
    ("name", "given"),
    [("plan", "later"), ("plan", 2), ("plan_seconds", "soon"), ("plan_seconds", -1),
     ("plan_seconds", "nan"), ("plan_seconds", "inf")],
)  # fmt: skip
def test_bad_plans(name: str, given: object) -> None:
    with pytest.raises(ValueError, match=name):
        _settings.resolve({name: given, "device": "cpu"}, {})


def test_percent_of_the_device() -> None:
    settings = _settings.resolve({"limit": "50%", "device": "cpu"}, {})
    assert settings.limit == _machine.host_memory() // 2


def test_unknown_variable_is_an_error_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMS_LIMT", "1GiB")
    with pytest.raises(ValueError, match="LMS_LIMT; did you mean LMS_LIMIT") as error:
        torch_lms.enable(device="cpu")
    for name in ("LMS_HOST_LIMIT", "LMS_DIR", "LMS_LIBRARY", "LMS_TORCH_DIR"):
        assert name in str(error.value)
    assert not torch_lms.is_enabled()


def test_known_other_variables_are_no_error() -> None:
    _settings.check_variables({"LMS_LIBRARY": "x", "LMS_TORCH_DIR": "y", "PATH": "z"})


def test_bad_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMS_LIMIT", "plenty")
    with pytest.raises(ValueError, match="LMS_LIMIT.*plenty.*GiB"):
        torch_lms.enable(device="cpu")


def test_unknown_argument_names_the_valid_ones() -> None:
    with pytest.raises(TypeError, match="limits.*did you mean limit") as error:
        torch_lms.enable(limits="1GiB")
    for name in ("host_limit", "min_block", "device", "directory", "stress", "verify", "log"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": "12 parsecs"},
        {"limit": -5},
        {"host_limit": "x"},
        {"min_block": "-1"},
        {"device": "tpu"},
        {"device": "xla"},
        {"device": "cuda:4096"},
        {"device": "cuda:128"},
        {"device": 300},
        {"directory": "/no/such/folder"},
        {"directory": 3.5},
        {"stress": "maybe"},
        {"recompute": "sometimes"},
        {"log": "loud"},
    ],
)
def test_bad_values(bad: dict[str, object]) -> None:
    arguments = {"device": "cpu", **bad}
    with pytest.raises(ValueError, match=f"torch_lms: {next(iter(bad))}: "):
        torch_lms.enable(**arguments)
    assert not torch_lms.is_enabled()


def test_devices() -> None:
    assert _settings.parse_device("cpu") == "cpu"
    assert _settings.parse_device(torch.device("cpu", 0)) == "cpu"
    expected = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    assert _settings.parse_device(None) == expected


def test_device_of_a_launchers_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of its rank, unless the program has chosen another or sees fewer."""
    current, count = 0, 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert _settings.default_device() == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _settings.default_device() == "cuda:1"
    assert _settings.parse_device("cuda") == "cuda:0", "the current one was asked for"
    monkeypatch.setenv("LOCAL_RANK", "0")
    current = 1
    assert _settings.default_device() == "cuda:1"
    monkeypatch.setenv("LOCAL_RANK", "1")
    current, count = 0, 1
    assert _settings.default_device() == "cuda:0"


def test_processes_of_a_launcher_share_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its part, of the disk here; a limit that was given is each one's."""
    limits = []
    for ranks in ("1", "4"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        torch_lms.enable(device="cpu", limit="1GiB")
        limits.append(torch.ops.lms.host_limit("cpu"))
        torch_lms.disable()
    assert limits[1] == pytest.approx(limits[0] / 4, rel=0.2)
    torch_lms.enable(device="cpu", limit="1GiB", host_limit="1GiB")
    assert torch.ops.lms.host_limit("cpu") == 1 << 30
    torch_lms.disable()


@pytest.mark.gpu
def test_cuda_devices() -> None:
    for given in ("cuda", "cuda:0", 0, "0", torch.device("cuda", 0)):
        assert _settings.parse_device(given) == "cuda:0"


def test_default_directory_is_on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kinds = {str(tmp_path): "tmpfs"}
    monkeypatch.setattr(_machine, "file_system_of", lambda path: kinds.get(str(path), "ext4"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert _machine.default_directory() == "/var/tmp"
    kinds[str(tmp_path)] = "xfs"
    assert _machine.default_directory() == str(tmp_path)


def test_file_systems() -> None:
    assert _machine.file_system_of("/proc/self") == "proc"
    assert _machine.file_system_of("/") != "unknown"


def test_group_limit_is_below_the_machine() -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < _machine.host_memory() <= machine
