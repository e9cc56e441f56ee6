"""Evaluation within training.

Its own sampling, pass@k by counting subsets, each dataset under its own name.
"""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.preflight.forecast import make_forecast
from tests.support.tiny_run import tiny_arguments, tiny_trainer


def even(completions, **kwargs):
    """Passes where the text has an even number of characters."""
    return [float(len(text) % 2 == 0) for text in completions]


def half(completions, **kwargs):
    return [0.5] * len(completions)


class Keeps(GRPOExtTrainer):
    """Keeps the samples of the last evaluation of each dataset."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = {}
        hand_out = self.parts.samples.hand_out_evaluation

        def keep(samples, rows, name):
            self.kept[name] = samples
            hand_out(samples, rows, name)

        self.parts.samples.hand_out_evaluation = keep


def noted(completions, log_extra, log_metric, **kwargs):
    """Logs, which an evaluation keeps to itself."""
    log_extra("mine", [0] * len(completions))
    log_metric("mine", 1.0)
    return [1.0] * len(completions)


def make(folder, out, rewards=(half, even), rollout=None, **settings):
    rows = [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 9)]
    usual = {"logging_steps": 10, "save_strategy": "steps"}
    args = tiny_arguments(
        out,
        per_device_train_batch_size=4,
        max_completion_length=9,
        **{**usual, **settings},
    )
    return tiny_trainer(
        folder,
        list(rewards),
        args,
        Dataset.from_list(rows),
        trainer_class=Keeps,
        rollout_func=rollout,
        eval_dataset={"seen": Dataset.from_list(rows[:5]), "new": Dataset.from_list(rows[5:])},
    )


def test_pass_at_k_is_logged_under_each_data_set(tiny_folder, tmp_path):
    trainer = make(
        tiny_folder,
        tmp_path,
        eval_temperature=1.0,
        eval_top_k=20,
        eval_num_samples=4,
        group_filter_metric="even",
    )
    metrics = trainer.evaluate()
    for name, rows in (("seen", 5), ("new", 3)):
        samples = trainer.kept[name]
        assert [s.row for s in samples] == [row for row in range(rows) for _ in range(4)]
        passed = [
            [s.rewards["even"] == 1.0 for s in samples if s.row == row] for row in range(rows)
        ]
        assert 0 < sum(map(sum, passed)) < 4 * rows
        for k in (1, 4):
            by_row = [
                statistics.mean(any(c) for c in itertools.combinations(row, k)) for row in passed
            ]
            assert metrics[f"eval_{name}_pass@{k}"] == pytest.approx(statistics.mean(by_row))
            error = statistics.stdev(by_row) / rows**0.5
            found = metrics[f"eval_{name}_pass@{k}_se"]
            assert found == pytest.approx(error) if error else found > 0.1
        assert (
            metrics[f"eval_{name}_mean@4"]
            == metrics[f"eval_{name}_pass@1"]
            == metrics[f"eval_{name}_even"]
        )
        assert metrics[f"eval_{name}_half"] == 0.5
        assert metrics[f"eval_{name}_problems"] == rows
    assert any(
        entry.get("eval_new_pass@4") == metrics["eval_new_pass@4"]
        for entry in trainer.state.log_history
    )


def test_evaluation_samples_as_it_is_told(tiny_folder, tmp_path):
    """top_k 1 is greedy at any temperature, and training's own top_k says nothing here."""
    greedy = make(tiny_folder, tmp_path, eval_temperature=0.0, top_k=3)
    narrow = make(tiny_folder, tmp_path, eval_temperature=1.0, eval_top_k=1, top_k=3)
    wide = make(tiny_folder, tmp_path, eval_temperature=1.0, top_k=1)
    texts = []
    for trainer in (greedy, narrow, wide):
        trainer.evaluate()
        texts.append([s.text for s in trainer.kept["seen"]])
    assert texts[0] == texts[1] != texts[2]
    assert "eval_seen_pass@1" in greedy.evaluate()  # of the first reward, where none is named
    assert greedy.evaluate()["eval_seen_pass@1"] == 0.0


def test_a_reward_model_and_what_a_reward_logs(tiny_folder, tmp_path):
    folder = tmp_path / "judge"
    config = AutoConfig.from_pretrained(tiny_folder, num_labels=1)
    judge = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(judge.score.weight)
    for part in (judge, AutoTokenizer.from_pretrained(tiny_folder)):
        part.save_pretrained(folder)
    trainer = make(
        tiny_folder,
        tmp_path,
        (str(folder), noted),
        eval_temperature=0.0,
        per_device_eval_batch_size=4,
    )
    metrics = trainer.evaluate("seen")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    judge = judge.eval()
    wanted = []
    for row, sample in zip(trainer.eval_dataset["seen"], trainer.kept["eval"], strict=True):
        ids = torch.tensor([tokenizer(row["prompt"] + sample.text)["input_ids"]])
        wanted.append(float(judge(ids).logits))
    assert len(set(wanted)) > 1
    assert [s.rewards["judge"] for s in trainer.kept["eval"]] == pytest.approx(wanted, abs=1e-5)
    assert metrics["eval_judge"] == pytest.approx(statistics.mean(wanted), abs=1e-5)
    assert metrics["eval_noted"] == metrics["eval_pass@1"] == 1.0  # of the reward that is no model
    assert "mine" not in trainer._pending_extra_logs and "mine" not in trainer._pending_metrics


def test_one_data_set_by_name(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, eval_temperature=0.0)
    assert trainer.evaluate("new")["eval_half"] == 0.5 and len(trainer.kept["eval"]) == 3
    with pytest.raises(ValueError, match=r"no held-out dataset 'old'. Choose one of: seen, new"):
        trainer.evaluate("old")
    assert "eval_loss" in make(tiny_folder, tmp_path, num_generations_eval=4).evaluate(
        "new"
    )  # TRL's


def test_no_rows_are_refused(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, eval_temperature=0.0)
    with pytest.raises(ValueError, match="The eval_dataset for the metrics eval_\\* has no rows"):
        trainer.evaluate(trainer.eval_dataset["seen"].select([]))


def test_what_generate_knows_nothing_of_is_refused(tiny_folder, tmp_path):
    def elsewhere(prompts, trainer):
        raise AssertionError

    with pytest.raises(ValueError, match=r"neither rollout_func.*Remove eval_temperature"):
        make(tiny_folder, tmp_path, eval_temperature=0.0, rollout=elsewhere)
    make(tiny_folder, tmp_path, rollout=elsewhere)


def test_samples_at_temperature_0_are_refused(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="the same completion 8 times"):
        make(tiny_folder, tmp_path, eval_temperature=0.0, eval_num_samples=8)


def test_the_trainer_chooses_the_batch_that_the_plan_names(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, gradient_checkpointing=False)
    values = {
        "model_name_or_path": str(tiny_folder),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 9,
        "max_steps": 1,
        "eval_strategy": "steps",
        "gradient_checkpointing": False,
    }
    recipe = load_recipe(None, {**values, "num_problems": 8, "max_numbers": 3, "max_number": 9})
    size = trainer.args.per_device_eval_batch_size
    assert size == make_forecast(recipe).eval_batch_size > 4
    assert (
        make(tiny_folder, tmp_path, per_device_eval_batch_size=12).args.per_device_eval_batch_size
        == 12
    )


@pytest.mark.parametrize("fast", [True, False])
def test_greedy_evaluations_do_not_depend_on_the_batch(tiny_folder, tmp_path, fast):
    found = []
    for size in (None, 1, 3, 4):
        trainer = make(
            tiny_folder,
            tmp_path,
            eval_temperature=0.0,
            per_device_eval_batch_size=size,
            fast_generate=fast,
        )
        metrics = trainer.evaluate()
        texts = {name: [s.text for s in samples] for name, samples in trainer.kept.items()}
        means = {key: m for key, m in metrics.items() if not key.endswith("runtime")}
        found.append((texts, means))
    for texts, means in found[1:]:
        assert texts == found[0][0]
        assert means == pytest.approx(found[0][1])


def test_trls_evaluation_takes_the_chosen_batch(tiny_folder, tmp_path):
    sizes = []

    def counting(completions, **kwargs):
        sizes.append(len(completions))
        return [0.5] * len(completions)

    trainer = make(tiny_folder, tmp_path, rewards=[counting], eval_constant=False)
    metrics = trainer.evaluate()
    chosen = trainer.args.per_device_eval_batch_size
    rows = {"seen": 5, "new": 3}
    expected = []
    for count in rows.values():
        completions = 4 * count
        while completions:
            expected.append(min(chosen, completions))
            completions -= expected[-1]
    assert chosen == 8 and sizes == expected
    assert metrics["eval_new_reward"] == 0.5
