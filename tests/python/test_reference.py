"""docs/reference.md, and the tables that it is made from, say what the code does."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import torch_lms
from torch_lms import _library, _settings, _statistics

ROOT = Path(__file__).resolve().parents[2]


def reference():
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location(
        "reference", ROOT / "tools" / "scripts" / "reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.pinned  # it lists its operators
def test_the_page_is_what_the_code_says():
    script = reference()
    assert script.page() == script.PATH.read_text(), "make reference writes it anew"


def test_every_setting_is_an_argument_and_an_option():
    names = {row.name for row in _settings.TABLE}
    parameters = inspect.signature(torch_lms.enable).parameters
    assert names == set(parameters) - {"unknown"}
    options = set(_settings.as_options(_settings.resolve({"device": "cpu"}, {})))
    assert options == set(_library.ops().options())


def test_the_docstring_of_enable_names_every_setting_and_variable():
    text = inspect.getdoc(torch_lms.enable)
    for row in _settings.TABLE:
        assert re.search(rf"^ +{row.name}: ", text, re.MULTILINE), row.name
        assert f"``{row.variable}``" in text


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_statistic_is_listed_and_no_other(device):
    torch_lms.enable(limit="64MiB", device=device)
    expected = {key for row in _statistics.TABLE if row.where in ("", device) for key in row.keys()}
    assert set(torch_lms.memory_stats(device)) == expected


def test_an_operator_is_listed_where_it_belongs():
    facts = set(_library.ops().operators("cuda"))
    assert "aten::view: left alone" in facts
    assert "aten::_fused_adamw_: in parts" in facts
    assert "aten::_lazy_clone: kept" in facts
    assert "aten::add.Tensor: pinned, may run again" in facts
    assert "aten::nonzero: pinned" in facts
