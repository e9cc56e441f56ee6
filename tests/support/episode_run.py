"""A run whose completions are episodes of a counting world."""

from __future__ import annotations

from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer
from tests.support.places import REPO
from tests.support.tiny_run import tiny_arguments

WORLD = {"name": f"{REPO}/tests/support/worlds.py:Counting", "turn_tokens": 4, "most": 3}

ROWS = [{"prompt": [{"role": "user", "content": f"Use {a} and {a + 1}."}]} for a in range(8)]


def make(folder, out, callbacks=None, cls=GRPOExtTrainer, rewards=None, **settings):
    usual = {
        "max_steps": 3,
        "learning_rate": 1e-2,
        "environment": WORLD,
        "max_completion_length": 60,
    }
    args = tiny_arguments(out, max_grad_norm=1e9, **{**usual, **settings})
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return cls(
        str(folder),
        rewards or ["environment", last_letter],
        args,
        Dataset.from_list(ROWS),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def last_letter(completions, turns, **columns):
    """Of the last turn; completions are conversations, `turns` what the model said in them."""
    for messages, said in zip(completions, turns, strict=True):
        assert [m["content"] for m in messages if m["role"] == "assistant"] == said
        assert [m["role"] for m in messages] == (["assistant", "user"] * 3)[: 2 * len(said) - 1]
    return [float(len(said[-1]) % 3) for said in turns]
