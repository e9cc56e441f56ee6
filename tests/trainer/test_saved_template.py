"""The chat template that is saved with a model writes the conversations of its training."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
from transformers import AutoTokenizer

from grpo_ext.environments.start_episodes import beginning
from grpo_ext.environments.turn_tokens import TurnTokens
from tests.support.episode_run import make

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
CONVERSATION = [
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "<think>\n3 first\n</think>\n\n3 + 4"},
    {"role": "user", "content": "no, 5"},
]


@pytest.fixture
def model(tiny_folder, tmp_path):
    """A tiny model with Qwen3's chat template, which drops thoughts from earlier turns."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    shutil.copy(TEMPLATES / "qwen3.jinja", folder / "chat_template.jinja")
    return folder


def written(tokenizer, messages):
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]


def test_a_saved_variant_writes_the_tokens_of_an_episode(model, tmp_path):
    original = AutoTokenizer.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id])
    question, turn, answer = CONVERSATION
    turn_ids = tokens.tokens_of(turn["content"] + tokenizer.eos_token)
    episode = tokens.prompt([question]) + turn_ids + tokens.answer([answer], ended=True)
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert written(saved, CONVERSATION) == episode
    assert written(original, CONVERSATION) != episode
    assert written(saved, [question]) == written(original, [question])
    # it is also what a further training begins with
    again = TurnTokens(saved, [saved.eos_token_id])
    assert again.prompt([question]) + turn_ids + again.answer([answer], ended=True) == episode


def test_rows_of_a_single_turn_beside_an_environment_read_the_variant(model):
    """The template is saved with the model, so all rows must have been trained with it."""
    original = AutoTokenizer.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ends = [tokenizer.eos_token_id]
    arguments = SimpleNamespace(
        max_completion_length=40, chat_template_kwargs=None, generation_kwargs=None
    )
    begin = beginning({"low": {"name": "guess", "high": 15}}, tokenizer, ends, arguments)
    rows = [{"prompt": CONVERSATION, "environment": name} for name in (None, "low")]
    single, played = begin(rows)
    assert single.single_turn and not played.single_turn
    assert tokenizer.chat_template == (TEMPLATES / "qwen3_training.jinja").read_text()
    assert single.prompt_ids == written(tokenizer, CONVERSATION)
    assert single.prompt_ids != written(original, CONVERSATION)
    assert "3 first" in tokenizer.decode(single.prompt_ids)
    assert "3 first" not in original.decode(written(original, CONVERSATION))
    opened = [*CONVERSATION[:-1], {"role": "user", "content": played.prompt[-1]["content"]}]
    assert played.prompt_ids == written(tokenizer, opened)


def test_a_run_says_which_template_it_uses_and_saves_it(model, tiny_folder, tmp_path, capsys):
    variant = (TEMPLATES / "qwen3_training.jinja").read_text()
    trainer = make(model, tmp_path / "variant", max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    printed = capsys.readouterr().out
    assert "turns: the model's turns are trained on exactly as sampled" in printed
    assert "TRL's training variant of the chat template" in printed
    trainer.save_model(str(tmp_path / "final"))
    for folder in (tmp_path / "variant" / "checkpoint-1", tmp_path / "final"):
        assert AutoTokenizer.from_pretrained(folder).chat_template == variant

    own = (tiny_folder / "chat_template.jinja").read_text()
    trainer = make(tiny_folder, tmp_path / "own", max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    told = capsys.readouterr().out
    assert "all other messages are rendered with the model's own chat template" in told
    assert AutoTokenizer.from_pretrained(tmp_path / "own" / "checkpoint-1").chat_template == own
