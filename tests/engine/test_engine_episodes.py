"""Episodes in colocate mode on a CPU: rows of several environments, and answers that are cut off.

The tokens, masks and gradient are those of the transformers sampler: each episode, played again
token by token as in `generate`, is the same.
"""

from __future__ import annotations

from collections import Counter

import pytest
from datasets import Dataset

from grpo_ext.preflight.replay import differences, play_again
from tests.support.episode_gradients import TRUNCATED, Gradients, Noting, oracle
from tests.support.episode_run import WORLD
from tests.support.logs import entries_with, json_rows
from tests.support.places import REPO
from tests.support.tiny_run import tiny_arguments, tiny_trainer

pytestmark = pytest.mark.vllm
WORLDS = f"{REPO}/tests/support/worlds.py"
ENVIRONMENTS = {
    "counting": {**WORLD, "credit": "turn"},
    "wordy": {"name": f"{WORLDS}:Wordy", "turn_tokens": 4, "most": 2},
}
NAMES = ("counting", "wordy", None, "wordy")


def row(number: int, name: str | None) -> dict:
    prompt = [{"role": "user", "content": f"Use {number} and {number + 1}."}]
    return {"prompt": prompt, "seed": number, "environment": name}


ROWS = [row(number, name) for number, name in enumerate(NAMES)]


def last_length(completions, **columns):
    return [float(len(messages[-1]["content"]) % 3) for messages in completions]


def make(folder, out, noted, **settings):
    args = tiny_arguments(
        out,
        max_steps=1,
        environments=ENVIRONMENTS,
        max_completion_length=60,
        per_device_train_batch_size=16,
        loss_type="dapo",
        max_grad_norm=1e9,
        log_samples=1.0,
        use_vllm=True,
        vllm_max_model_length=256,
        **settings,
    )
    rows = Dataset.from_list(ROWS)
    rewards = ["environment", last_length]
    return tiny_trainer(folder, rewards, args, rows, Noting, callbacks=[noted])


def trained_on(trainer) -> Counter:
    """Prompt, tokens and mask of each completion, by how often it was trained on."""
    found: Counter = Counter()
    for part in (batch.rows for batch in trainer.used):
        for i in range(len(part)):
            prompt = part.prompt_ids[i][part.prompt_mask[i].bool()].tolist()
            said = part.completion_mask[i].bool()
            ids = part.completion_ids[i][said].tolist()
            mask = part.tool_mask[i][said].tolist()
            found[tuple(prompt), tuple(ids), tuple(mask)] += 1
    return found


@pytest.mark.parametrize("sampling", [{}, TRUNCATED], ids=["whole", "truncated"])
def test_a_mixed_batch_is_that_of_the_transformers_sampler(engine_folder, tmp_path, sampling):
    noted = Gradients()
    trainer = make(engine_folder, tmp_path, noted, **sampling)
    trainer.train()
    assert trainer.vllm_generation.syncs > 0
    [logged] = entries_with(trainer, "loss")
    assert logged["environments/counting/episodes/turns"] == 3
    assert logged["environments/wordy/episodes/answers_cut"] == 1
    assert logged["environments/wordy/episodes/at_length_limit"] == 0
    samples = json_rows(tmp_path / "samples.jsonl")
    played: Counter = Counter()
    for sample in samples:
        if "messages" in sample:
            [episode] = trainer.parts.generations.begin([ROWS[sample["seed"]]])
            play_again(episode, sample)
            assert differences(episode, {}, sample) == []
            played[tuple(episode.prompt_ids), tuple(episode.ids), tuple(episode.mask)] += 1
    others = trained_on(trainer)
    assert sum(played.values()) == 12 and played <= others
    others -= played
    assert sum(others.values()) == 4  # of one turn
    assert all(set(mask) == {1} for _, _, mask in others)
    wanted = oracle(engine_folder, noted.weights, trainer.used, **sampling)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-4, off
