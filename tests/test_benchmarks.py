"""Every benchmark runs as `python -m benchmarks.NAME` in the folder of the checkout, and shares
code by package name.
"""

from __future__ import annotations

import ast
import json
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

from benchmarks import figures, zero_signal
from benchmarks.recorded import FOLDER as RESULTS
from benchmarks.recorded import load, save
from tests.support.places import REPO

FOLDER = REPO / "benchmarks"
PATHS = [path for path in FOLDER.rglob("*.py") if path.stem != "__init__"]
FILES = {".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in PATHS}
PROGRAMS = [
    name
    for name, path in FILES.items()
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", FILES)
def test_files_import_each_other_by_package_name(name):
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert not found & {path.stem for path in PATHS} - {"__main__"}
    assert "__file__" not in FILES[name].read_text(encoding="utf-8").replace(
        "Path(__file__).resolve().parents[1]", ""
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_says_what_it_is(name, monkeypatch, capsys):
    if name == "vllm_cpu" and not find_spec("vllm"):
        pytest.skip("vLLM lives in an environment of its own")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as left:
        import_module(f"benchmarks.{name}").main()
    printed = capsys.readouterr().out
    assert left.value.code == 0 and (name == "figures" or "--quick" in printed)


def test_pages_cite_the_figures_of_their_results():
    assert list(figures.differences(figures.SENTENCES)) == []


def test_a_page_that_cites_another_figure_is_named_and_filled():
    sentence = figures.Sentence(
        "benchmarks/README.md",
        "checkpoints",
        "{millions:.0f} million",
        lambda found: {"millions": 57},
    )
    page = "It has 12\n million parameters."
    assert figures.cited(sentence, page).groups() == ("12",)
    assert figures.filled(sentence, page) == "It has 57\n million parameters."
    for without in ("It has no parameters.", page + page):
        with pytest.raises(LookupError, match="not once"):
            figures.filled(sentence, without)


def test_every_fault_that_was_recorded_has_its_row():
    page = (REPO / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for row in load("faults"):
        assert f"| {row['fault']} | {row['happened']} | {row['lost']} |" in page


def test_a_file_of_figures_says_where_they_come_from(tmp_path):
    save(tmp_path / "new" / "some.json", {"ratio": 2.5})
    recorded = json.loads((tmp_path / "new" / "some.json").read_text())
    assert recorded["figures"] == {"ratio": 2.5}
    assert "cores" in recorded["machine"] and recorded["versions"]["torch"] == torch.__version__
    for path in RESULTS.glob("*.json"):
        assert set(json.loads(path.read_text())) == set(recorded), path


def recorded_seeds(gain, seeds):
    """Curves of TRL and of two variants that are better by about `gain`, depending on the seed."""
    return {
        name: [
            {"curve": [(10.0, 0.4 + seed / 50), (20.0, 0.5 + (seed + 1) * better)]}
            for seed in range(seeds)
        ]
        for name, better in (("TRL", 0.0), ("refill", gain), ("both", gain))
    }


def test_one_seed_of_zero_signal_decides_nothing():
    """30 seconds of one seed once needed 0.96 of TRL's time, where a longer run needed 0.48."""
    for gain in (-0.1, 0.1):
        gained = zero_signal.gains(recorded_seeds(gain, 1))
        assert zero_signal.behind(gained) == []
        assert zero_signal.undecided(gained) == ["refill", "both"]
    assert zero_signal.behind(zero_signal.gains(recorded_seeds(-0.1, 5))) == ["refill", "both"]
    gained = zero_signal.gains(recorded_seeds(0.1, 5))
    assert zero_signal.behind(gained) == [] and gained["both"].verdict == "rose"
    assert zero_signal.undecided(gained) == []
    assert gained["both"].mean == pytest.approx(0.15)
