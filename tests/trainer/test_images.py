"""Prompts with images: plain TRL's gradient, and a run of several steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from PIL import Image
from trl import GRPOConfig, GRPOTrainer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from tests.support.tiny_vision import llava


def digits(completions, **kwargs):
    return [
        sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"]))
        for c in completions
    ]


def run(trainer_class, config_class, folder, out, chat=(), tools=None, **settings):
    """Train on four prompts with an image each; the trainer, and the weights afterwards."""
    model, processor = llava(folder, *chat)
    model.save_pretrained(out / "model")  # where TRL finds the reference
    model = type(model).from_pretrained(out / "model", dtype=torch.float32)
    colours = ("red", "green", "blue", "white")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Use {a}, 3 to make {a + 4}."}],
            "image": Image.new("RGB", (8, 8), c),
        }
        for a, c in enumerate(colours)
    ]
    args = config_class(
        output_dir=str(out),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        learning_rate=0.1,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        loss_type="grpo",
        optim="sgd",
        seed=3,
        **settings,
    )
    rows = Dataset.from_list(rows)
    trainer = trainer_class(
        model, digits, args, train_dataset=rows, processing_class=processor, tools=tools
    )
    trainer.train()
    return trainer, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


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
    with pytest.raises(ValueError, match=r"without .* images"):
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
