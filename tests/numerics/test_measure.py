"""`grpo-ext numerics` with a tiny model: within its limits, and outside where a run is altered."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch

from grpo_ext.cli.main import main
from grpo_ext.numerics import measure as measuring
from tests.support.bench_words import words

TRUNCATED = {"top_k": 12, "top_p": 0.9}


def numerics(capsys, folder, **settings):
    """The exit code of the command, and what it prints as JSON."""
    given = words(folder, **settings)
    command = ["numerics", "--config", "countdown/tiny", "--completions", "6", "--json", *given]
    code = main(command)
    return code, json.loads(capsys.readouterr().out)


def by_name(found):
    return {row["name"]: row for row in found["comparisons"]}


def altered(monkeypatch, change):
    """Call `change` with the trainer between sampling and scoring."""
    sample = measuring.sampled_table

    def sample_and_change(trainer, count):
        table = sample(trainer, count)
        change(trainer)
        return table

    monkeypatch.setattr(measuring, "sampled_table", sample_and_change)


def test_float32_is_within_all_limits(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, found = numerics(capsys, tiny_folder, **TRUNCATED)
    assert code == 0 and found["within"] and found["advice"] == []
    assert list(tmp_path.iterdir()) == []  # nothing is written
    assert found["completions"] == 8 and found["tokens"] > 8  # two groups of four
    rows = by_name(found)
    measured = [row for row in rows.values() if row["distance"]]
    assert len(measured) >= 9
    for row in measured:
        assert row["distance"]["largest"] < 1e-4, row["name"]
        assert row["distance"]["tokens"] == found["tokens"]
    assert rows[measuring.FLOAT32]["reason"] == "the policy computes in float32 itself"
    for parts in ("by_position", "by_probability"):
        tokens = [part["tokens"] for part in rows[measuring.SAMPLER][parts].values() if part]
        assert sum(tokens) == found["tokens"]
    assert found["edges"]["positions"] == found["tokens"]
    assert found["edges"]["beyond"] == 0.0 and found["edges"]["differ"] < 0.05


@pytest.mark.parametrize("casts", ["false", "true"])
def test_half_types_are_compared_with_a_float32_copy(tiny_folder, capsys, casts):
    _, found = numerics(capsys, tiny_folder, dtype="bfloat16", cast_lm_head_to_fp32=casts)
    rows = by_name(found)
    assert found["weights"] == "bfloat16"
    assert 1e-5 < rows[measuring.FLOAT32]["distance"]["mean"] < 0.1
    assert rows[measuring.SAMPLER]["distance"]["mean"] < 0.1
    assert found["edges"] is None


def test_other_weights_are_outside_the_limits(tiny_folder, monkeypatch, capsys):
    def change(trainer):
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.3 * weight.std() * noise)

    altered(monkeypatch, change)
    code, found = numerics(capsys, tiny_folder)
    rows = by_name(found)
    assert code == 1 and not found["within"]
    assert "KL" in rows[measuring.SAMPLER]["exceeded"]
    # the trainer still agrees with itself
    assert all(not row["exceeded"] for row in rows.values() if row["part"] == "trainer")
    [line] = found["advice"]
    assert "more than rounding" in line


def test_another_temperature_is_outside_the_limits(tiny_folder, monkeypatch, capsys):
    def change(trainer):
        scorer = trainer.parts.scorer
        scorer.params = replace(scorer.params, temperature=0.7)

    altered(monkeypatch, change)
    code, found = numerics(capsys, tiny_folder)
    assert code == 1
    assert {"KL", "mean", "share"} <= set(by_name(found)[measuring.SAMPLER]["exceeded"])


def test_tables_are_printed_with_limits_and_their_sources(tiny_folder, capsys):
    command = ["numerics", "--config", "countdown/tiny", "--completions", "4"]
    assert main([*command, *words(tiny_folder, top_k=12)]) == 0
    printed = capsys.readouterr()
    for words_of_it in (
        "log-probs of the same tokens",
        "last quarter",
        "prime-rl",
        "keep different tokens",
    ):
        assert words_of_it in printed.out
    assert "all within the limits" in printed.out
    assert "numerics: sampling\n" in printed.err


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_recipe_with_a_layout_of_its_own_is_measured(tiny_folder, capsys, layout):
    code, found = numerics(capsys, tiny_folder, layout=layout, gradient_checkpointing="true")
    assert code == 0
    assert any("without gradient checkpointing" in name for name in by_name(found))


def test_a_signal_ends_the_command_at_once(tiny_folder, monkeypatch, capsys):
    command = ["numerics", "--config", "countdown/tiny", *words(tiny_folder)]
    for number in (signal.SIGINT, signal.SIGTERM):
        kill = partial(os.kill, os.getpid(), number)
        with monkeypatch.context() as patch:
            altered(patch, lambda trainer, kill=kill: kill())
            assert main(command) == 128 + number
        printed = capsys.readouterr()
        assert "save a checkpoint" not in printed.err and printed.out == ""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_sampler_without_log_probs_is_refused(tiny_folder, capsys):
    command = ["numerics", "--config", "countdown/tiny", *words(tiny_folder, logprob_policy="trl")]
    assert main(command) == 2
    assert "returned no log-probs" in capsys.readouterr().err
