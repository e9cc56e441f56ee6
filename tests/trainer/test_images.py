"""Prompts with images: plain TRL's gradient, and a run of several steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trl
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from tests.support.image_run import run
from tests.support.tiny_vision import llava


def test_the_gradient_is_that_of_plain_trl(tiny_folder, tmp_path):
    start, _ = llava(tiny_folder)
    start = torch.cat([p.detach().flatten() for p in start.parameters()])
    as_trl = {
        "fast_generate": False,
        "logprob_policy": "trl",
    }  # which counts the image token, though none is drawn
    (_, theirs), (_, ours) = (
        run(GRPOTrainer, GRPOConfig, tiny_folder, tmp_path),
        run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path / "ours", **as_trl),
    )
    moved = (theirs - start).abs().max()
    assert moved > 1e-3 and (ours - theirs).abs().max() < 1e-4 * moved


@pytest.mark.parametrize(
    "settings", [{"group_filter": "drop"}, {"logprob_policy": "model", "temperature": 0.7}], ids=str
)
def test_several_updates_and_a_reference(tiny_folder, tmp_path, settings, monkeypatch):
    """The completions are scored once under the policy that sampled and once under the reference,
    and TRL scores none.
    """
    calls = []
    score = GRPOTrainer._get_per_token_logps_and_entropies

    def counted(self, *args, **kwargs):
        calls.append(torch.is_grad_enabled())
        return score(self, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    settings = {"num_iterations": 2, "beta": 0.1, **settings}
    trainer, weights = run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path, **settings)
    assert calls.count(False) == 2 and calls.count(True) == 4
    assert weights.isfinite().all()
    assert [row["kl"] for row in trainer.state.log_history[:2]] == [
        pytest.approx(0.0, abs=1e-6),
        pytest.approx(0.05, abs=0.049),
    ]


def test_an_evaluation_by_generate_is_refused(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="nor a multimodal processor"):
        run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path, eval_temperature=0.0)


def double(x: int) -> int:
    """Double a number.

    Args:
        x: the number.
    """
    return 2 * x


def test_tools_beside_images_are_called_by_trl(tiny_folder, tmp_path):
    chat = (
        (Path(trl.__file__).parent / "chat_templates" / "qwen3_vl.jinja").read_text(
            encoding="utf-8"
        ),
        "<|image_pad|>",
    )
    trainer, weights = run(
        GRPOExtTrainer, GRPOExtConfig, tiny_folder, tmp_path, chat, tools=[double]
    )
    assert weights.isfinite().all() and trainer.state.log_history[0]["tools/failure_frequency"] == 0
