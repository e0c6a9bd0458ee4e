"""LMS in trainers of others: examples log what LMS does, and have the bits of a run without.

The packages are in the environments of `make test-integrations`, and those of some with
`ARGS=--more`; elsewhere their tests are skipped.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torch_lms
from bench import started_files, started_rows
from torch_lms.integrations import Session

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "integrations"
NAMES = {"planned", "step_ms", "out_gib", "in_gib", "recomputed_gib", "peak_gib", "below_gib"}
NAMES = {f"lms/{name}" for name in NAMES}
PREDICTED = {"lms/predicted_ms", "lms/predicted_overhead"}

# Runs an example as a program of its own; then its weights (and their averages, and statistics of
# batch norm), what LMS did, and what was logged, on the last line.
PROBE = """
import hashlib, json, runpy, sys, torch, torch_lms
sys.argv = sys.argv[1:]
stats, off = {}, torch_lms.disable
def disable(*names):
    stats.update(torch_lms.memory_stats())
    off(*names)
torch_lms.disable = disable
made = runpy.run_path(sys.argv[0], run_name="__main__")
digest = hashlib.sha256()
models = [made["model"]] + [made[name] for name in ["ema"] if name in made]
if "YOLO" in made:  # the model itself has the averages, rounded
    models = [models[0].trainer.model, models[0].trainer.ema.ema]
for model in models:
    for name, value in sorted(getattr(model, "module", model).state_dict().items()):
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
logged = []
if "history" in made:
    values = made["history"].history
    logged = [dict(zip(values, row)) for row in zip(*values.values())]
elif hasattr(made.get("trainer"), "state") and hasattr(made["trainer"].state, "log_history"):
    logged = made["trainer"].state.log_history
print(json.dumps({"weights": digest.hexdigest(), "logged": logged, "on": torch_lms.devices(),
                  "moved": stats.get("bytes_out", 0), "planned": stats.get("plan.steps", 0),
                  "peak": torch.cuda.max_memory_allocated()}))
"""


def run_python(folder: Path, *arguments: str, device: str = "cpu", **variables: str) -> str:
    """What a Python that runs in a folder prints."""
    folder.mkdir(exist_ok=True)
    variables = os.environ | {
        "PYTHONPATH": str(ROOT / "python"), "LMS_DEVICE": device, "LMS_LOG": "off",
        "LMS_PLAN": "now", "LMS_PLAN_SECONDS": "0.1", "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled", "YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(folder),
        "AXOLOTL_DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false",
    } | variables  # fmt: skip
    if device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env=variables, cwd=folder, timeout=900,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


def run_example(name: str, folder: Path, *arguments: str, **more: str) -> dict:
    printed = run_python(folder, "-c", PROBE, str(EXAMPLES / name), *arguments, **more)
    return json.loads(printed.splitlines()[-1])


def read_tensorboard(folder: Path) -> dict[str, list[float]]:
    """All scalars of all event files below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[float]] = {}
    for path in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(path))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend(event.value for event in events.Scalars(tag))
    return found


def compare(name: str, limit: str, tmp_path: Path, **variables: str) -> dict:
    """The run under LMS, whose weights are those of the run without; nothing is left on."""
    plain = run_example(name, tmp_path / "plain", **variables)
    under = run_example(name, tmp_path / "lms", limit, **variables)
    assert under["weights"] == plain["weights"]
    assert under["on"] == []
    return under


def check(logged: list[dict], limit: int) -> None:
    """Every entry has the scalars; something moved; a step was planned, and then predicted."""
    assert len(logged) == 3
    for entry in logged:
        assert entry.keys() >= NAMES
        assert entry["lms/out_gib"] > 0 and entry["lms/in_gib"] > 0
        assert 0 < entry["lms/peak_gib"] * 2**30 <= limit
        assert entry["lms/step_ms"] > 0
        if entry["lms/planned"] > 0:
            assert entry["lms/predicted_ms"] > 0 and entry["lms/predicted_overhead"] > -1
        else:
            assert not entry.get("lms/predicted_ms", 0) > 0
    assert any(entry["lms/planned"] > 0 for entry in logged)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"no {', '.join(missing)} here: make test-integrations (ARGS=--more)"
    )


@pytest.mark.slow
@needs("transformers", "accelerate", "tensorboard")
def test_trainer_of_hugging_face_and_its_tensorboard(tmp_path: Path) -> None:
    under = compare("hugging_face.py", "160MiB", tmp_path)
    check([entry for entry in under["logged"] if "loss" in entry], 160 << 20)
    seen = read_tensorboard(tmp_path / "lms")
    assert {f"train/{name}" for name in NAMES | PREDICTED} <= seen.keys()


@pytest.mark.slow
@needs("trl", "transformers", "datasets", "accelerate")
def test_trl(tmp_path: Path) -> None:
    under = compare("trl_sft.py", "40MiB", tmp_path)
    check([entry for entry in under["logged"] if "loss" in entry], 40 << 20)


@pytest.mark.slow
@needs("accelerate", "tensorboard")
def test_accelerate(tmp_path: Path) -> None:
    compare("accelerate_loop.py", "60MiB", tmp_path)
    check(rows(read_tensorboard(tmp_path / "lms")), 60 << 20)


@pytest.mark.slow
@needs("lightning", "tensorboard")
def test_lightning(tmp_path: Path) -> None:
    compare("lightning_fit.py", "60MiB", tmp_path)
    check(rows(read_tensorboard(tmp_path / "lms")), 60 << 20)


def rows(seen: dict[str, list[float]]) -> list[dict]:
    """Scalars of an event file, an entry each time; predictions are not in all of them."""

    def table(names: set[str]) -> list[dict]:
        values = zip(*(seen[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    entries, predicted = table(NAMES), table(PREDICTED)
    planned = [entry for entry in entries if entry["lms/planned"] > 0]
    assert len(planned) == len(predicted)
    for entry, more in zip(planned, predicted, strict=True):
        entry.update(more)
    return entries


@pytest.mark.slow
@needs("timm")
def test_timm_with_averaged_weights(tmp_path: Path) -> None:
    under = compare("timm_loop.py", "200MiB", tmp_path)
    assert under["moved"] > 0 and under["planned"] > 0


@pytest.mark.slow
@needs("keras")
def test_keras(tmp_path: Path) -> None:
    under = compare("keras_fit.py", "60MiB", tmp_path)
    check(under["logged"], 60 << 20)


@pytest.mark.slow
@needs("ultralytics")
def test_ultralytics(tmp_path: Path) -> None:
    compare("ultralytics_train.py", "48MiB", tmp_path, LMS_MIN_BLOCK="65536")
    tables = [tmp_path / run / "out" / "ultralytics" / "results.csv" for run in ("plain", "lms")]
    plain, under = (list(csv.DictReader(path.read_text().splitlines())) for path in tables)
    for without, row in zip(plain, under, strict=True):
        assert without | {"time": row["time"]} == {name: row[name] for name in without}
    check([{name: float(value) for name, value in row.items()} for row in under], 48 << 20)


def test_ultralytics_on_several_gpus_is_refused() -> None:
    """By the process that ultralytics starts for the first of them, in which LMS is not on."""
    from torch_lms.integrations.ultralytics import attach

    class Model:
        def __init__(self) -> None:
            self.calls: dict[str, Callable] = {}

        def add_callback(self, event: str, call: Callable) -> None:
            self.calls[event] = call

    model = Model()
    attach(model, **SETTINGS).end()
    with pytest.raises(RuntimeError, match="one GPU"):
        model.calls["on_pretrain_routine_start"](SimpleNamespace(world_size=2))
    assert torch_lms.devices() == []


@pytest.mark.slow
@needs("monai", "ignite", "tensorboard")
def test_monai(tmp_path: Path) -> None:
    compare("monai_trainer.py", "9MiB", tmp_path, LMS_MIN_BLOCK="65536")
    plain, under = (read_tensorboard(tmp_path / run) for run in ("plain", "lms"))
    assert len(plain["Loss"]) == 24 and under["Loss"] == plain["Loss"]
    check(rows(under), 9 << 20)


def started_row(name: str) -> started_rows.Row:
    """How lab/bench/started.py has a program start."""
    return next(row for row in started_rows.rows(None) if row.name == name)


def assert_all_equal(compared: dict[str, tuple[str, str]], tmp_path: Path) -> None:
    found = started_files.compare(compared, tmp_path / "plain", tmp_path / "lms")
    assert started_files.all_equal(found), found


# The example's trainer, seeded as the plain one is, and soon through.
NNUNET = """
import torch_lms
from nnUNetTrainerLms import nnUNetTrainerLms
from started_nnunet import SeededTrainerNoDA

class Plain(SeededTrainerNoDA):
    def __init__(self, plans, configuration, fold, dataset_json, device):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch = 3, 10
    def perform_actual_validation(self, save_probabilities=False):
        self.print_to_log_file("managed:", torch_lms.devices())

class Lms(Plain, nnUNetTrainerLms):
    pass
"""


@pytest.mark.slow
@needs("nnunetv2")
def test_nnunet(tmp_path: Path) -> None:
    row, trainers = started_row("nnunet-no-augmentation"), tmp_path / "trainers"
    trainers.mkdir()
    for path in (EXAMPLES / "nnunet" / "nnUNetTrainerLms.py", *row.scripts.values()):
        shutil.copy(path, trainers)
    (trainers / "short.py").write_text(NNUNET)
    row.data(tmp_path)
    variables = row.variables | {
        "nnUNet_raw": str(tmp_path / "data" / "raw"),
        "nnUNet_preprocessed": str(tmp_path / "data" / "preprocessed"),
        "nnUNet_extTrainer": str(trainers),
        "LMS_MIN_BLOCK": "65536",
    }
    programs = Path(sys.executable).parent
    _, program, *arguments = row.before[0].split()
    one = variables | {"nnUNet_n_proc_DA": "1"}  # the planner takes no 0
    run_python(tmp_path, str(programs / program), *arguments, **one)
    told = {}
    for name, trainer, more in (("plain", "Plain", {}), ("lms", "Lms", {"LMS_LIMIT": "52MiB"})):
        words = [str(programs / "nnUNetv2_train"), *"1 2d 0 -device cpu -tr".split(), trainer]
        run_python(tmp_path / name, *words, **variables, **more)
        (log,) = (tmp_path / name).glob("out/*/*/fold_0/training_log_*.txt")
        told[name] = log.read_text()
    assert_all_equal(row.compared, tmp_path)
    losses = [re.findall(r"(?:train|val)_loss (\S+)", text) for text in told.values()]
    assert len(losses[0]) == 6 and losses[1] == losses[0]
    assert "lms/" not in told["plain"] and "managed: []" in told["lms"]
    lines = [line for line in told["lms"].splitlines() if "lms/planned" in line]
    found = [dict(re.findall(r"(lms/\w+) ([^,\s]+)", line)) for line in lines]
    check([{name: float(value) for name, value in row.items()} for row in found], 53 << 20)


@pytest.mark.slow
@needs("axolotl", "tensorboard")
def test_axolotl(tmp_path: Path) -> None:
    run_python(tmp_path / "plain", str(ROOT / "lab" / "bench" / "started_axolotl.py"))
    shutil.copytree(tmp_path / "plain", tmp_path / "lms")
    config = (EXAMPLES / "axolotl.yml").read_text()
    without = config[config.index("base_model:") :]
    losses = {}
    for name, text in (("plain", without), ("lms", config.replace("12GiB", "48MiB"))):
        (tmp_path / name / "config.yml").write_text(text)
        command = ["-m", "axolotl.cli.train", "config.yml", "--use_cpu", "True", "--device", "cpu"]
        run_python(tmp_path / name, *command, LMS_MIN_BLOCK="65536")
        state = json.loads((tmp_path / name / "out/checkpoint-24/trainer_state.json").read_text())
        logged = [entry for entry in state["log_history"] if "loss" in entry]
        losses[name] = [entry["loss"] for entry in logged]
    assert losses["lms"] == losses["plain"]
    check(logged, 48 << 20)
    compared = {
        "weights": ("out/model.safetensors", ""),
        "optimizer": ("out/checkpoint-24/optimizer.pt", ".state"),
    }
    assert_all_equal(compared, tmp_path)
    seen = read_tensorboard(tmp_path / "lms")
    assert {f"train/{name}" for name in NAMES | PREDICTED} <= seen.keys()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("hugging_face.py", "transformers"),
        ("accelerate_loop.py", "accelerate"),
        ("lightning_fit.py", "lightning"),
        ("timm_loop.py", "timm"),
    ],
)
def test_on_a_gpu(name: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"no {package} here")
    plain = run_example(name, tmp_path / "plain", device="cuda")
    again = run_example(name, tmp_path / "again", device="cuda")
    assert again["weights"] == plain["weights"], "the plain run does not repeat itself"
    under = run_example(name, tmp_path / "lms", str(plain["peak"] * 4 // 5), device="cuda")
    assert under["weights"] == plain["weights"]
    assert under["moved"] > 0 and under["planned"] > 0 and under["on"] == []


def train(steps: int, width: int = 64) -> torch.Tensor:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(12)]
    optimizer = torch.optim.SGD([weight for one in layers for weight in one.parameters()], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        value = torch.ones(width, width)
        for layer in layers:
            value = layer(value)
        value.square().mean().backward()
        optimizer.step()
    return layers[0].weight.detach()


SETTINGS = {"limit": "160KiB", "min_block": 4096, "device": "cpu", "plan": "now"}


def test_a_session_tells_what_a_step_moved() -> None:
    session = Session(**SETTINGS)
    before = torch_lms.memory_stats()
    train(12)
    after = torch_lms.memory_stats()
    told = session.scalars(12)
    moved = after["bytes_out"] - before.get("bytes_out", 0)
    assert moved > 0 and told["lms/out_gib"] == pytest.approx(moved / 12 / 2**30)
    followed = after["plan.steps"] - before.get("plan.steps", 0)
    assert followed > 0 and told["lms/planned"] == pytest.approx(min(1, followed / 12))
    assert told["lms/predicted_ms"] == after["plan.predicted_us"] / 1e3
    assert session.scalars(12) == {}, "no step since"
    session.end()
    assert torch_lms.devices() == []


def test_a_session_leaves_lms_as_it_found_it() -> None:
    torch_lms.enable(**SETTINGS)
    with_own = Session(limit="200KiB", device="cpu")
    assert torch_lms.get_limit() == 200 << 10
    with_own.end()
    assert torch_lms.get_limit() == 160 << 10
    without = Session(device="cpu") if torch.cuda.is_available() else Session()
    assert torch_lms.get_limit() == 160 << 10
    without.end()
    without.end()
    assert torch_lms.devices() == ["cpu"]


def test_a_session_begins_again() -> None:
    session = Session(**SETTINGS)
    session.end()
    session.begin()
    assert torch_lms.devices() == ["cpu"]
    session.end()
    assert torch_lms.devices() == []


def test_what_does_not_fit_at_the_end_stays_managed(monkeypatch, caplog) -> None:
    session = Session(**SETTINGS)

    def full(device: str) -> None:
        raise torch.OutOfMemoryError("does not fit")

    monkeypatch.setattr(torch_lms, "disable", full)
    session.end()
    monkeypatch.undo()
    assert torch_lms.devices() == ["cpu"]
    assert "LMS stays on" in caplog.text


@pytest.mark.parametrize(
    ("name", "in_memory_ms", "peak_gib", "least_gib", "operator"),
    [
        # What `lms plan` says of it: docs/planning.md.
        ("recorded_unet3d_bf16_192", 225.0, 6.22, 1.69, "aten::convolution_backward"),
    ],
)
def test_a_recorded_step(name, in_memory_ms, peak_gib, least_gib, operator) -> None:
    from torch_lms._learnt import read_trace

    step = read_trace(ROOT / "tests" / "golden" / f"{name}.json.gz")
    assert step.operators == 937 and step.least_operator == operator
    assert round(step.in_memory_ms, 1) == in_memory_ms
    assert round(step.in_memory_peak / 2**30, 2) == peak_gib
    assert round(step.least / 2**30, 2) == least_gib


def test_examples_are_short() -> None:
    for path in [*EXAMPLES.rglob("*.py"), *EXAMPLES.glob("*.yml")]:
        assert len(path.read_text().splitlines()) <= 40, path.name
