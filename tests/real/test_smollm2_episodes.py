"""Episodes of a pretrained model: the tokens that it reads, writes and is trained on."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from transformers import AutoTokenizer

from tests.support.logs import entries_with
from tests.support.places import REPO
from tests.support.real_run import make
from tests.support.worlds import Bordering

WORLD = {"name": f"{REPO}/tests/support/worlds.py:Bordering", "turn_tokens": 4}
SETTINGS = {"environment": WORLD, "max_completion_length": 80, "sampler_check_share": 1.0}
TRUNCATED = {"temperature": 0.8, "top_k": 25, "top_p": 0.9}


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


def alternating(completions, **columns):
    """1 and 0 in turn, so that every group has a signal, and every row is trained on."""
    return [float(number % 2) for number, _ in enumerate(completions)]


def trained_rows(trainer):
    """Train, and return for each row its prompt, its completion and the mask of turns, as lists."""
    rows = []
    compute_loss = trainer._compute_loss

    def watched(model, inputs):
        table = inputs.rows
        for i in range(len(table)):
            prompt = table.prompt_ids[i][table.prompt_mask[i].bool()]
            is_real = table.completion_mask[i].bool()
            columns = (prompt, table.completion_ids[i][is_real], table.tool_mask[i][is_real])
            rows.append(tuple(column.int().tolist() for column in columns))
        return compute_loss(model, inputs)

    trainer._compute_loss = watched
    trainer.train()
    return rows


def spans(ids, mask):
    """Return the tokens of each turn and of what stands between two turns, in their order."""
    parts = groupby(zip(ids, mask, strict=True), key=lambda token: token[1])
    return [(is_turn, [token for token, _ in part]) for is_turn, part in parts]


def between(tokenizer, number, ended):
    """Return the tokens after turn `number` by the template's text, tokenized part by part."""
    text = "\n<|im_start|>user\n" if ended else "<|im_end|>\n<|im_start|>user\n"
    before = tokenizer(text).input_ids
    answer = tokenizer(Bordering.ANSWERS[number], split_special_tokens=True).input_ids
    return [*before, *answer, *tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids]


@pytest.mark.parametrize("sampling", [{}, TRUNCATED], ids=["plain", "truncated"])
def test_the_environments_words_alone_are_masked(smollm2, tokenizer, tmp_path, sampling):
    trainer = make(smollm2, tmp_path, lora=True, **SETTINGS, **sampling)
    rows = trained_rows(trainer)
    logged = entries_with(trainer, "loss")
    assert len(logged) == 2
    for entry in logged:
        assert entry["sampling/logp_difference/max"] < 1e-4
    merged = 0
    for prompt, completion, mask in rows:
        turns = []
        for is_turn, ids in spans(completion, mask):
            if is_turn:
                turns.append(ids)
                assert len(ids) <= 4
            else:
                ended = turns[-1][-1] == tokenizer.eos_token_id
                assert ids == between(tokenizer, len(turns) - 1, ended)
        assert len(turns) == 3
        text = tokenizer.decode([*prompt, *completion])
        merged += tokenizer(text).input_ids != [*prompt, *completion]
    assert rows and merged == len(rows)


def test_the_sampler_reads_the_tokens_that_are_trained_on(smollm2, tmp_path):
    settings = {**SETTINGS, "fast_generate": False, "max_steps": 1}
    trainer = make(smollm2, tmp_path, lora=True, reward=alternating, **settings)
    read = []
    generate = trainer.model.generate

    def watched(*args, **kwargs):
        embeddings = trainer.model.get_input_embeddings()
        handle = embeddings.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        try:
            return generate(*args, **kwargs)
        finally:
            handle.remove()

    trainer.model.generate = watched
    rows = trained_rows(trainer)
    contexts = torch.cat(read, dim=1).tolist()
    for prompt, completion, _ in rows:
        expected = [*prompt, *completion[:-1]]  # the model does not read the last token
        assert any(contains(context, expected) for context in contexts)
    assert len(rows) == 8


def contains(ids, part):
    """Return whether `part` stands in a row of padded tokens, without a gap."""
    return any(ids[start : start + len(part)] == part for start in range(len(ids)))
