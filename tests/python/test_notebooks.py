"""The notebooks keep their promises: each cell is run in order, without Jupyter."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import forked
import pytest

pytestmark = pytest.mark.pinned

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
ROOT = FOLDER.parents[1]
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))

# What Jupyter does with a notebook, and then what it has come to.
RUNNER = """
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
names = {"__name__": "__main__"}
for cell in cells:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"<{cell['id']}>", "exec"), names)
found = {name: names[name] for name in ("losses", "in_memory", "out_of_memory", "room")}
found["stats"] = dict(names["stats"])
found["figures"] = names["plt"].get_fignums()
print("\\nfound " + json.dumps(found))
"""


def cells(name: str) -> list[dict]:
    return json.loads((FOLDER / name).read_text())["cells"]


def test_the_two_are_there() -> None:
    assert NOTEBOOKS == ["language-model.ipynb", "segmentation-3d.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_is_a_notebook_without_outputs(name: str) -> None:
    notebook = json.loads((FOLDER / name).read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    idents = [cell["id"] for cell in notebook["cells"]]
    assert len(set(idents)) == len(idents)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        assert cell["metadata"] == {} and all(isinstance(line, str) for line in cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
        else:
            assert cell["cell_type"] == "markdown" and "outputs" not in cell


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_lead_somewhere(name: str) -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells(name))
    links = re.findall(r"\]\(([^)#\s]+)\)", text)
    assert len(links) > 3
    for target in links:
        assert (FOLDER / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_and_says_the_truth(name: str, device: str) -> None:
    pytest.importorskip("matplotlib")
    variables = {key: value for key, value in os.environ.items() if key != "LMS_VERIFY"}
    # As in Jupyter, the notebook's folder is on the path.
    variables |= {"PYTHONPATH": f"{ROOT / 'python'}:{FOLDER}", "PYTHONDONTWRITEBYTECODE": "1"}
    variables |= {"MPLBACKEND": "Agg"}
    if device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    ran = subprocess.run(
        [*forked.command(), "-c", RUNNER, name], capture_output=True, text=True, env=variables,
        cwd=FOLDER, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.rpartition("\nfound ")[2])
    plain_error = {"cpu": "can't allocate memory", "cuda": "CUDA out of memory"}[device]
    assert plain_error in found["out_of_memory"] and "LMS" not in found["out_of_memory"]
    assert len(found["losses"]) > 1 and found["losses"] == found["in_memory"]
    assert found["losses"][-1] < found["losses"][0]
    assert found["stats"]["evictions"] > 0 and found["stats"]["bytes_in"] > 0
    assert found["stats"]["device.bytes.peak"] <= found["stats"]["limit"] == found["room"]
    assert found["figures"] == [1]
    for words in (f"LMS on {device}", "The step that is known takes", "losses equal"):
        assert words in ran.stdout
