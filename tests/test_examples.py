"""Every script in examples/ runs from an empty folder and says what it shows."""

from __future__ import annotations

import pytest

from tests.support.forked import Forked, run_script
from tests.support.places import REPO

SAID = {
    "own_reward.py": "step 5: mean reward",
    "own_rows.py": "rewards: accuracy, length",
    "lora_and_merge.py": "parameters in runs/examples/lora-merged",
    "from_trl.py": "2 steps, training loss",
    "truncated_sampling.py": "step 3: largest difference",
    "compare_two_models.py": "runs/examples/model-1, length:",
    "curriculum.py": "groups/kept",
    "poem_demonstrations.py": "223 demonstrations in runs/poem-demonstrations.jsonl",
    "several_tasks.py": "vowels reward",
    "several_turns.py": "episodes/turns",
    "solved_to_sft.py": "prompts in runs/examples/solved.jsonl",
}


def test_every_example_is_listed_and_run():
    scripts = {path.name for path in (REPO / "examples").glob("*.py")} - {"tiny_model.py"}
    assert scripts == set(SAID)
    page = (REPO / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in scripts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name, tmp_path):
    process = Forked(run_script, REPO / "examples" / name, folder=tmp_path)
    assert process.wait() == 0, process.printed[-2000:]
    assert SAID[name] in process.printed
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
