"""Programs that are started plain and under LMS: with one of the test's own, and the record."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab"))

from bench import records, started, started_files  # noqa: E402

pytestmark = pytest.mark.pinned

PROGRAM = """
import os, sys
import torch

epochs = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
averaged = torch.optim.swa_utils.AveragedModel(model)
for epoch in range(epochs):
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(torch.randn(256, 192)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
"""
SAVES = """
torch.save({"weights": model.state_dict(), "averaged": averaged.state_dict()}, "end.pt")
"""
UNDER_LMS_ANOTHER = """
if "torch_lms" in sys.modules:
    with torch.no_grad():
        model[3].bias[7] += 1
"""
NEVER_THE_SAME = """
with torch.no_grad():
    model[3].bias[7] += int.from_bytes(os.urandom(4), "little") + 1
"""
# A class that whoever reads the file does not have.
FOREIGN = """
class Net(torch.nn.Module):
    pass
class Held:
    pass
net, held = Net(), Held()
net.part, held.rows, held.again = model[0], [torch.arange(3), {"x": torch.ones(1)}], held
held.more = [[torch.ones(2)], [torch.ones(4)]]
torch.save({"net": net, "held": held, "held_too": torch.ones(5)}, "end.pt")
"""


def row(tmp_path: Path, *parts: str) -> started.Row:
    program = tmp_path / "program.py"
    program.write_text("".join([PROGRAM, *parts]))
    return started.Row(
        "own",
        "",
        "train.py 4",
        {"epochs": 4, "batches_per_epoch": 5},
        {"weights": ("end.pt", ".weights"), "averaged weights": ("end.pt", ".averaged")},
        scripts={"train.py": program},
    )


def measure(tmp_path: Path, *parts: str) -> started.Record:
    return started.measure(row(tmp_path, *parts), tmp_path / "scratch")


@pytest.mark.usefixtures("forked_python")
def test_a_program_plain_and_at_half_of_its_peak(tmp_path: Path) -> None:
    made = measure(tmp_path, SAVES)
    assert "failed" not in made, made
    assert made["equal"] and made["exit"] == 0 and made["batches"] == 20
    # An average counts its updates, too.
    assert made["compared"] == {
        "weights": {"tensors": 12, "equal": 12},
        "averaged weights": {"tensors": 13, "equal": 13},
    }
    # Weights, gradients, two states, the average.
    assert made["peak_mib"] > 5 * 6 * 192 * 192 * 4 / 2**20
    assert made["limit_mib"] == pytest.approx(made["peak_mib"] / 2, abs=0.051)
    limit = f"--limit {made['limit_mib']}MiB --min-block 65536 --log info -- train.py 4"
    assert made["lms"] == f"python -m torch_lms run {limit}"
    assert made["said"].startswith("cpu: at most ") and " 0 B left" not in made["said"]
    assert 0 <= made["plan_steps"] <= 20
    assert made["seconds_plain"] > 0 and made["seconds_lms"] > 0
    assert len(made["blobs"]["train.py"]) == 40
    kept = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert kept == {name + end for name in ("plain", "peak", "lms") for end in ("", ".log")}
    assert "12 of 12 weights; 13 of 13 averaged weights" in started.table({"rows": [made]})


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    ("change", "repeats"),
    [(UNDER_LMS_ANOTHER, True), (NEVER_THE_SAME, False)],
    ids=["under LMS", "always"],
)
def test_other_weights_are_said_to_be_others(change: str, repeats: bool, tmp_path: Path) -> None:
    made = measure(tmp_path, change, SAVES)
    assert made["equal"] is False and made["plain_repeats"] is repeats
    assert made["compared"]["weights"] == {"tensors": 12, "equal": 11}
    assert made["compared"]["averaged weights"] == {"tensors": 13, "equal": 13}
    assert "11 of 12 weights" in started.table({"rows": [made]})


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    ("last", "run", "why", "words"),
    [
        ("raise ValueError('the last of it')\n", "plain", 1, "ValueError: the last of it"),
        ("sys.exit('torch_lms' in sys.modules and 3)\n", "peak", 3, "epoch 3: loss"),
        ("", "compare", "0 files end.pt were left", "steps ran under a plan"),
        ("torch.save({'weights': {}}, 'end.pt')", "compare", "weights: 0 and 0 tensors", "epoch 3"),
    ],
)
def test_what_fails_is_recorded_with_its_output(
    last: str, run: str, why: int | str, words: str, tmp_path: Path
) -> None:
    made = measure(tmp_path, last)
    assert made["failed"] == run and "equal" not in made
    assert made["exit"] == why or str(why) in str(made["exit"])
    assert any(words in line for line in made["output"])
    assert len(made["output"]) <= 40
    assert f"{run} failed" in started.table({"rows": [made]})
    json.dumps(made)


def test_what_is_not_there_is_left_out_and_why(tmp_path: Path) -> None:
    missing = replace(row(tmp_path), package="no-such-package")
    made = started.measure(missing, tmp_path / "scratch")
    assert made["left_out"] == "no-such-package is not installed"
    made = [started.measure(each, tmp_path) for each in started.rows(None) if each.name == "timm"]
    assert made[0]["left_out"] == "train.py was not given"
    assert "train.py was not given" in started.table({"rows": made})


@pytest.mark.usefixtures("forked_python")
def test_objects_of_classes_that_are_not_here(tmp_path: Path) -> None:
    started._run(row(tmp_path, FOREIGN), tmp_path, "plain")
    found = started_files.tensors_of(tmp_path / "plain", "end.pt", "")
    shapes = sorted(tuple(each.shape) for each in found.values())
    assert shapes == [(1,), (2,), (3,), (4,), (5,), (192,), (192, 192)]
    assert len(started_files.tensors_of(tmp_path / "plain", "end.pt", ".held")) == 4


def test_bits_are_compared_and_not_values() -> None:
    nan = torch.tensor([float("nan")])
    assert started_files._same(nan, nan.clone())
    assert not started_files._same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not started_files._same(torch.zeros(2), torch.zeros(2, 1))
    assert not started_files._same(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert started_files._same(torch.tensor(1), torch.tensor(1))


def test_weights_that_a_program_does_not_save(tmp_path: Path) -> None:
    """An interpreter of its own: what is forked has begun already."""
    own = replace(row(tmp_path, SAVES), site="started_weights.py")
    started._run(own, tmp_path, "plain")
    kept = started_files.tensors_of(tmp_path / "plain", "weights.pt", "")
    saved = started_files.tensors_of(tmp_path / "plain", "end.pt", ".weights")
    assert len(kept) == len(saved) == 12
    pairs = zip(kept.values(), saved.values(), strict=True)
    assert all(started_files._same(one, other) for one, other in pairs)


def test_what_is_run_first_and_with_which_variables(tmp_path: Path) -> None:
    """The plain run of a module's: an interpreter of its own, with what is in its folder."""
    first = tmp_path / "first.py"
    first.write_text(
        "import os, pathlib, random, torch\n"
        "pathlib.Path('module.py').write_text('import first')\n"
        "drawn = [random.random(), torch.rand(1).item(), os.environ['ONE'], os.environ['TWO']]\n"
        "with open('drawn.txt', 'a') as file: print(*drawn, file=file)\n"
    )
    own = started.Row(
        "own",
        "",
        "-m module",
        {"epochs": 1, "batches_per_epoch": 1},
        {},
        scripts={"first.py": first, "folder/again.py": first},
        before=("ONE=other first.py",),
        variables={"ONE": "1", "TWO": "2"},
        site="started_seed.py",
    )
    started._run(own, tmp_path, "plain")
    kept = (tmp_path / "plain" / "drawn.txt").read_text().splitlines()
    assert [line.split()[2:] for line in kept] == [["other", "2"], ["1", "2"]]
    assert kept[0].split()[:2] == kept[1].split()[:2]
    assert (tmp_path / "plain" / "folder" / "again.py").is_file()

    failing = replace(own, before=("first.py", "no-such-program"))
    with pytest.raises(started.Failed) as failed:
        started._run(failing, tmp_path, "peak")
    assert "no-such-program" in str(failed.value)
    assert (tmp_path / "peak" / "drawn.txt").read_text().count("\n") == 1


def test_files_of_safetensors(tmp_path: Path) -> None:
    facts = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "a": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]},
    }
    values = torch.tensor([[1.5], [-0.0]]), torch.tensor(3.0, dtype=torch.bfloat16)
    header = json.dumps(facts).encode()
    parts = [bytes(each.reshape(-1).view(torch.uint8).tolist()) for each in values]
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"".join([len(header).to_bytes(8, "little"), header, *parts]))
    found = started_files.tensors_of(tmp_path, "*.safetensors", "")
    assert found.keys() == {".a", ".b"}
    assert started_files._same(found[".b"], values[0])
    assert started_files._same(found[".a"], values[1])


def test_a_record_is_added_to(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    record = started.begun(file, True)
    for name, number in (("second", 1), ("of old", 2), ("first", 3), ("second", 4)):
        started.add(record, {"name": name, "number": number}, ["first", "second"])
    records.write(record, file)
    kept = started.begun(file, True)
    assert [each["number"] for each in kept["rows"]] == [3, 4, 2]
    assert started.begun(file, False)["rows"] == []
    records.write(record | {"variables": {}}, file)
    with pytest.raises(ValueError, match="has other variables"):
        started.begun(file, True)


# ---- the record

RECORD = json.loads((ROOT / "lab" / "results" / "programs-started.json").read_text())
ROWS = {each["name"]: each for each in RECORD["rows"]}


def test_the_record_is_of_all_rows_and_has_equal_weights() -> None:
    everything = {each.name: each for each in started.rows(Path("train.py"))}
    assert ROWS.keys() == everything.keys()
    for name, kept in ROWS.items():
        row = everything[name]
        assert (kept["command"], kept["batches"]) == (row.command, row.batches)
        assert kept.get("before", []) == list(row.before)
        assert kept.get("variables", {}) == row.variables
        assert kept["equal"] is True, name
        assert kept["compared"].keys() == row.compared.keys()
        assert all(one["equal"] == one["tensors"] > 0 for one in kept["compared"].values())


def test_each_row_says_of_which_commit_it_is() -> None:
    for name, kept in ROWS.items():
        assert len(kept["commit"]) == 40, name
        assert kept["commit_dirty"] in (True, False), name


def test_the_versions_are_those_that_are_pinned() -> None:
    files = sorted((ROOT / "tools" / "requirements").glob("started*.txt"))
    pinned = "".join(file.read_text() for file in files)
    for kept in ROWS.values():
        assert f"{kept['program']}=={kept['version']}\n" in pinned


def test_the_table_of_the_record_is_of_it() -> None:
    page = (ROOT / "lab" / "results" / "programs-started.md").read_text()
    assert started.table(RECORD) in page


def test_the_page_says_what_the_record_says() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text()
    said = {
        "yolo": "{plan_steps} steps of two batches planned in {batches} batches",
        "yolo-short": "{plan_steps} of {batches} batches in epochs of five",
        "yolo-nbs64": "{plan_steps} planned in {batches} batches",
        "yolo-short-nbs64": "and {plan_steps} in {batches}; of",
        "yolo-nbs64-long": "of {batches} batches, 120 of them the warm-up, {plan_steps} planned",
        "timm": "{plan_steps} steps of two batches planned in {batches} batches",
        "timm-no-prefetcher": "With `--no-prefetcher` {plan_steps} of {batches} |",
        "monai-1": "{plan_steps} of {batches} steps planned with one loader worker",
        "monai-2": ", {plan_steps} with two |",
        "monai-0": "of MONAI's {batches} steps {plan_steps} were planned",
        "nnunet-no-augmentation": "{plan_steps} of {batches} steps planned. With it",
        "nnunet-0": "With it {plan_steps} of {batches} in the same process",
        "nnunet-1": "and {plan_steps} of {batches} with one loader process",
        "axolotl": "{plan_steps} of {batches} steps planned, and",
        "axolotl-launcher": "and {plan_steps} by `axolotl train`",
        "axolotl-packed": "{plan_steps} with packed sequences",
        "axolotl-lora": "and {plan_steps} with LoRA",
    }
    assert said.keys() == ROWS.keys()
    for name, words in said.items():
        assert words.format(**ROWS[name]) in page, name
