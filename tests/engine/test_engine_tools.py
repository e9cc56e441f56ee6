"""Results of tools that are cut off, in colocate mode on a CPU. The model has learned one call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext.environments.fit_answers import CUT_OFF
from grpo_ext.preflight.replay import differences, play_again
from grpo_ext.tiny.model import build_model
from tests.support.episode_gradients import Gradients, Noting, oracle
from tests.support.logs import entries_with, json_rows
from tests.support.places import REPO
from tests.support.tiny_run import tiny_arguments, tiny_trainer
from tests.support.worlds import Library

pytestmark = pytest.mark.vllm
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
WORLD = {"name": f"{REPO}/tests/support/worlds.py:Library", "turn_tokens": 60, "turns": 2}
ROWS = [{"prompt": [{"role": "user", "content": "Read."}], "seed": n} for n in range(4)]


@pytest.fixture(scope="module")
def calling_folder(engine_folder, tmp_path_factory) -> Path:
    """A model that calls `read`, in most completions at temperature 1."""
    folder = tmp_path_factory.mktemp("calling") / "model"
    tokenizer = AutoTokenizer.from_pretrained(engine_folder)
    tokenizer.chat_template = TEMPLATE.read_text()
    model = build_model(
        tokenizer,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=2048,
    )
    prompt = tokenizer.apply_chat_template(
        ROWS[0]["prompt"], tools=Library().tools(), add_generation_prompt=True
    )["input_ids"]
    call = tokenizer(CALL, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    ids = torch.tensor([prompt + call])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(90):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def length(completions, **columns):
    return [float(len(messages[-1]["content"]) % 3) for messages in completions]


def test_results_of_tools_that_are_cut_are_trained_around(calling_folder, tmp_path):
    noted = Gradients()
    args = tiny_arguments(
        tmp_path,
        max_steps=1,
        environment=WORLD,
        max_completion_length=250,
        loss_type="dapo",
        max_grad_norm=1e9,
        log_samples=1.0,
        use_vllm=True,
        vllm_max_model_length=2048,
    )
    rows = Dataset.from_list(ROWS)
    trainer = tiny_trainer(calling_folder, [length], args, rows, Noting, callbacks=[noted])
    trainer.train()
    [logged] = entries_with(trainer, "loss")
    assert trainer.vllm_generation.syncs > 0 and logged["episodes/answers_cut"] > 0
    results = []
    for sample in json_rows(tmp_path / "samples.jsonl"):
        [episode] = trainer.parts.generations.begin([ROWS[sample["seed"]]])
        play_again(episode, sample)
        assert differences(episode, {}, sample) == []
        results += [m["content"] for m in sample["messages"] if m["role"] == "tool"]
    assert any(result.startswith("12 + 7") and result.endswith(CUT_OFF) for result in results)
    wanted = oracle(calling_folder, noted.weights, trainer.used)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-4, off
