"""The fast loop returns what transformers' `generate` returns, and does less for it."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import StopStringCriteria

from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.decoding.decode import prefill
from grpo_ext.seams.generate import fast_generation
from tests.support.tiny_models import ENDS, FAMILIES, batch_sizes, decoding, make_batch, make_model


def both(model, batch, config, **more):
    """Transformers' ids, ours, and the forward passes that ours took."""
    torch.manual_seed(0)
    theirs = model.generate(**batch, generation_config=config, **more)
    torch.manual_seed(0)
    with fast_generation(model), batch_sizes(model) as passes:
        ours = model.generate(**batch, generation_config=config, **more)
    return theirs, ours, passes


def lengths(ids, width):
    return [
        next((t + 1 for t, token in enumerate(row) if token in ENDS), len(row))
        for row in ids[:, width:].tolist()
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("even", [True, False], ids=["even_prompts", "uneven_prompts"])
def test_greedy_is_transformers_own(family, even):
    prompts = [7] * 10 if even else [5, 3, 9, 1, 12, 2, 7, 4, 6, 11]
    batch = make_batch(prompts, group=3)
    theirs, ours, passes = both(make_model(family), batch, decoding())
    assert torch.equal(theirs, ours)
    assert len(set(lengths(theirs, max(prompts)))) >= 3
    assert passes[0] == (10, max(prompts))  # each prompt once
    rows = [rows for rows, _ in passes[1:]]
    assert rows == sorted(rows, reverse=True) and rows[-1] <= 15  # and fewer rows all the time


def test_decodes_little_more_than_the_tokens_there_are():
    batch = make_batch([5, 3, 9, 1, 12, 2, 7, 4], group=8)
    model = make_model()
    config = decoding(60, do_sample=True, top_k=0)
    with fast_generation(model), batch_sizes(model) as passes:
        ids = model.generate(**batch, generation_config=config)
    needed = sum(lengths(ids, 12)) - 64  # the prefill gives the first token of each row
    assert needed <= sum(rows for rows, _ in passes[1:]) <= needed * 8 / 7 + 64


@pytest.mark.parametrize(
    "options",
    [
        {"min_new_tokens": 10},
        {"suppress_tokens": ENDS[:6]},
        {"bad_words_ids": [[20], [21, 22]]},
        {"no_repeat_ngram_size": 2},
        {"eos_token_id": None},
        {"pad_token_id": None},
        {"max_new_tokens": 1},
        {"forced_eos_token_id": 3},
        {"exponential_decay_length_penalty": (4, 1.5)},
        {"sequence_bias": [[[30], 4.0]]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_generate_mean_what_they_mean(options):
    theirs, ours, passes = both(make_model(), make_batch([5, 3, 9, 1, 12, 2]), decoding(**options))
    assert torch.equal(theirs, ours)
    assert passes[0][0] == 6


def test_stop_strings(tiny_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    batch = tokenizer(
        [f"Use {a}, {a + 1} to make {2 * a}." for a in range(1, 40)],
        return_tensors="pt",
        padding=True,
    )
    batch.pop("token_type_ids", None)
    config = decoding(40, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    free = model.generate(**batch, generation_config=config)[:, batch["input_ids"].size(1) :]
    early, late = (set(tokenizer.batch_decode(free[:, step : step + 1])) for step in (0, 20))
    stops = StoppingCriteriaList(
        [StopStringCriteria(tokenizer=tokenizer, stop_strings=sorted(late - early))]
    )
    theirs, ours, passes = both(model, batch, config, stopping_criteria=stops)
    assert torch.equal(theirs, ours)
    assert not torch.equal(theirs[:, : free.size(1)], free)
    assert passes[-1][0] < 39


def sequence_probabilities(model, batch, steps, vocab, temperature=1.0, top_k=0):
    """Probability of each completion, one forward pass over the whole text at a time, without cache
    and padding.
    """
    prompt = batch["input_ids"][0][batch["attention_mask"][0].bool()].tolist()
    chances = {(): 1.0}
    for _ in range(steps):
        grown = {}
        for done, chance in chances.items():
            if done and done[-1] in (1, 2, 3):
                grown[done] = grown.get(done, 0.0) + chance
                continue
            with torch.no_grad():
                logits = (
                    model(input_ids=torch.tensor([[*prompt, *done]])).logits[0, -1].double()
                    / temperature
                )
            if top_k:
                logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
            for token, p in enumerate(logits.softmax(-1).tolist()):
                grown[(*done, token)] = chance * p
        chances = grown
    assert sum(chances.values()) == pytest.approx(1)
    return chances


@pytest.mark.parametrize(
    "sampling", [{"top_k": 0}, {"temperature": 0.6, "top_k": 4}], ids=["plain", "truncated"]
)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_samples_follow_the_distribution(family, sampling):
    """8,000 completions of at most three tokens of six, three of which end, by a chi-squared
    statistic.
    """
    model = make_model(family, vocab_size=6, initializer_range=0.15)
    batch = {
        "input_ids": torch.tensor([[0, 2, 3, 4]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1]]),
    }
    batch = {name: rows.repeat(8000, 1) for name, rows in batch.items()}
    config = decoding(3, do_sample=True, eos_token_id=[1, 2, 3], **sampling)
    torch.manual_seed(1)
    with fast_generation(model), batch_sizes(model) as passes:
        ids = model.generate(**batch, generation_config=config)[:, 4:]
    assert passes[0] == (1, 4) and passes[-1][0] < 8000
    chances = sequence_probabilities(model, batch, 3, 6, **sampling)
    counts = dict.fromkeys(chances, 0)
    for row in ids.tolist():
        counts[
            tuple(row[: next((t + 1 for t, token in enumerate(row) if token in (1, 2, 3)), 3)])
        ] += 1
    assert all(count == 0 for done, count in counts.items() if chances[done] == 0)
    likely = [done for done, chance in chances.items() if chance * 8000 >= 5]
    observed = [counts[done] for done in likely]
    expected = [chances[done] * 8000 for done in likely]
    observed = [*observed, 8000 - sum(observed)]
    expected = [*expected, 8000 - sum(expected)]
    statistic = sum(
        (o - e) ** 2 / max(e, 1e-9) for o, e in zip(observed, expected, strict=True) if e > 1
    )
    freedom = len(likely) - 1
    assert freedom >= 10
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    "family, noise",
    [
        ("llama", "attention_dropout"),
        ("gpt_neox", "hidden_dropout"),
        ("opt", "dropout"),
        ("mixtral", "router_jitter_noise"),
    ],
)
def test_noise_makes_each_row_its_own(family, noise):
    """TRL samples in training mode.

    Rows of a group then see different dropout, which shared prompts would not.
    """
    model = make_model(family, **{noise: 0.3}).train()
    with fast_generation(model), batch_sizes(model) as passes:
        model.generate(**make_batch([5, 3]), generation_config=decoding(2, do_sample=True))
    assert passes[0][0] == 8
    model.eval()
    with fast_generation(model), batch_sizes(model) as passes:
        model.generate(**make_batch([5, 3]), generation_config=decoding(2, do_sample=True))
    assert passes[0][0] == 2


def test_a_processor_with_select_rows_is_told_who_leaves():
    class Watcher:
        def __init__(self):
            self.rows, self.final = list(range(12)), {}

        def __call__(self, input_ids, scores):
            assert len(input_ids) == len(scores) == len(self.rows)
            return scores

        def select_rows(self, input_ids, rows):
            assert len(input_ids) == len(self.rows)
            for i in set(range(len(self.rows))) - set(rows.tolist()):
                self.final[self.rows[i]] = input_ids[i].tolist()
            self.rows = [self.rows[i] for i in rows.tolist()]

    watcher = Watcher()
    model = make_model()
    with fast_generation(model):
        ours = model.generate(
            **make_batch([5, 3, 9]),
            generation_config=decoding(),
            logits_processor=LogitsProcessorList([watcher]),
        )
    assert watcher.final
    for row, ids in watcher.final.items():
        assert ours[row, : len(ids)].tolist() == ids and set(ours[row, len(ids) :].tolist()) <= {0}


@torch.no_grad()
@pytest.mark.parametrize("masked", [True, False])
def test_prefill_reads_each_distinct_row_once_and_answers_all(masked):
    model = make_model()
    ids = torch.randint(13, 40, (4, 5), generator=torch.Generator().manual_seed(0))[
        [0, 1, 0, 2, 3, 1, 0]
    ]
    inputs = {CACHE_INPUT: DynamicCache(config=model.config)}
    if masked:
        inputs["attention_mask"] = torch.tensor(
            [[1] * 5, [0] + [1] * 4, *[[1] * 5] * 3, [0] + [1] * 4, [1] * 5]
        )
    expected = model(input_ids=ids, attention_mask=inputs.get("attention_mask")).logits[:, -1]
    with batch_sizes(model) as passes:
        logits = prefill(model, ids, inputs)
    assert passes == [(4, 5)]
    assert torch.allclose(logits, expected, atol=1e-5)
    assert inputs[CACHE_INPUT].layers[0].keys.shape[0] == 7


def test_the_head_reads_whole_tensors_and_not_slices():
    """torch would copy the weights of a frozen head for each row of a slice."""
    model = make_model().requires_grad_(False)
    contiguous = []
    model.get_output_embeddings().register_forward_hook(
        lambda _, inputs, output: contiguous.append(inputs[0].is_contiguous())
    )
    with fast_generation(model):
        model.generate(**make_batch([5, 3, 9]), generation_config=decoding())
    assert len(contiguous) > 2
    assert all(contiguous)
    assert not model.get_output_embeddings()._forward_pre_hooks
