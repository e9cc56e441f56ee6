"""Every benchmark runs as `python -m benchmarks.NAME` in the folder of the checkout, and shares code by package name."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from benchmarks import zero_signal
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
    assert left.value.code == 0 and "--quick" in capsys.readouterr().out


def recorded_seeds(gain, seeds):
    """Curves of TRL and of two variants that are better by `gain`, a little more or less by seed."""
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
