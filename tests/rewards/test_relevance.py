"""The reward `relevance`.

How much more likely a text is after its own prompt, by a small model that knows two subjects.
"""

import json
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.registry import lookup
from grpo_ext.rewards.relevance import are_copied, different_prompts, unrelated_to
from grpo_ext.rewards.run_defaults import set_model, set_prompts
from grpo_ext.scoring.frozen_model import FrozenModel, load_frozen
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.optimizer import MuonWithAdamW
from grpo_ext.tiny.tokenizer import TAGS, build_tokenizer
from tests.support.hostile_texts import hostile_completions
from tests.support.runaway import no_runaway

SUBJECTS = {
    "rain": ["wet", "cloud", "drop", "umbrella", "puddle", "storm", "grey", "pour"],
    "bread": ["flour", "oven", "crust", "yeast", "knead", "butter", "slice", "dough"],
    "chess": ["pawn", "rook", "bishop", "castle", "check", "queen", "mate", "board"],
    "sea": ["wave", "salt", "sail", "harbour", "tide", "shell", "anchor", "fish"],
}
FILLERS = ["it", "is", "a", "the", "and", "of", "very", "so"]


def prompt_of(subject):
    return f"Write about {subject}."


def text_on(subject, generator, length=8):
    words = [
        generator.choice(SUBJECTS[subject] if generator.random() < 0.5 else FILLERS)
        for _ in range(length)
    ]
    return " ".join(words)


def random_text(generator, words):
    return " ".join(generator.choice(words) for _ in range(8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that has learnt which words belong to which subject."""
    generator = random.Random(0)
    pairs = [
        (prompt_of(subject), text_on(subject, generator))
        for _ in range(300)
        for subject in SUBJECTS
    ]
    tokenizer = build_tokenizer([text for pair in pairs for text in pair], 400)
    model = build_model(tokenizer, hidden_size=32, intermediate_size=64)
    optimizer = MuonWithAdamW(model, lr=1e-2)
    for step in range(60):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 60)
        texts = [prompt + " " + text for prompt, text in generator.sample(pairs, 64)]
        batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def scores_of(folder, texts, prompts, **options):
    return build("relevance", model=folder, **options)(completions=texts, prompts=prompts)


def plain_log_probs(frozen, prompt, text):
    """The log-probs of a text, each token by a pass of its own without padding."""
    ids = [*prompt, *text]
    logps = []
    for end in range(len(prompt), len(ids)):
        with torch.no_grad():
            logits = frozen.model(input_ids=torch.tensor([ids[:end]])).logits[0, -1]
        logps.append(logits.double().log_softmax(0)[ids[end]].item())
    return logps


def test_log_probs_are_those_of_the_model(folder):
    frozen = load_frozen(folder)
    pairs = [
        (frozen.prompt_ids(prompt_of(subject)), frozen.text_ids(text, 100))
        for subject, text in [("rain", "wet cloud"), ("sea", "a"), ("chess", "pawn " * 20)]
    ]
    for (prompt, text), logps in zip(pairs, frozen.log_probs(pairs), strict=True):
        assert logps.tolist() == pytest.approx(plain_log_probs(frozen, prompt, text), abs=1e-4)


def test_the_score_is_the_mean_difference(folder):
    frozen = load_frozen(folder)
    prompts = list(map(prompt_of, SUBJECTS))
    text = "wet cloud and the umbrella is very grey"
    ids = frozen.text_ids(text, 100)
    own, *others = [plain_log_probs(frozen, frozen.prompt_ids(p), ids) for p in prompts]
    expected = 0.0
    for token in range(len(ids)):
        expected += own[token] - sum(other[token] for other in others) / 3
    [score, *_] = scores_of(folder, [text] * 4, prompts, num_unrelated=3)
    assert score == pytest.approx(expected / len(ids), abs=1e-4)
    [first, *_] = scores_of(folder, [text] * 4, prompts, num_unrelated=3, min_tokens=100)
    assert first == pytest.approx(expected / 100, abs=1e-4)


def test_a_text_chooses_its_own_subject(folder):
    """Of 40 texts nearly all score best after the prompt of their subject, of four."""
    generator = random.Random(1)
    prompts = list(map(prompt_of, SUBJECTS))
    right = 0
    for _ in range(10):
        for number, subject in enumerate(SUBJECTS):
            text = text_on(subject, generator)
            scores = scores_of(folder, [text] * 4, prompts)
            right += scores[number] == max(scores)
    assert right >= 34


def test_what_any_prompt_makes_equally_likely_earns_nothing(folder):
    generator = random.Random(2)
    prompts = list(map(prompt_of, SUBJECTS)) * 10
    on_subject = [text_on(subject, generator) for subject in SUBJECTS for _ in range(10)]
    own_prompts = [prompt_of(subject) for subject in SUBJECTS for _ in range(10)]
    evasive = [random_text(generator, FILLERS) for _ in prompts]
    mean = {
        "on": sum(scores_of(folder, on_subject, own_prompts)) / 40,
        "evasive": sum(scores_of(folder, evasive, prompts)) / 40,
        "off": sum(scores_of(folder, on_subject[10:] + on_subject[:10], own_prompts)) / 40,
    }
    assert mean["on"] > 0.3
    assert abs(mean["evasive"]) < 0.25 * mean["on"]
    assert mean["off"] < 0 < mean["on"]


def test_a_text_that_all_prompts_give_equally_earns_nothing(folder, monkeypatch):
    monkeypatch.setattr(FrozenModel, "prompt_ids", lambda self, prompt: [5, 6])
    scores = scores_of(folder, ["wet cloud", "flour"] * 2, [f"p{n}" for n in range(4)])
    assert scores == pytest.approx([0.0] * 4, abs=1e-6)


@pytest.mark.parametrize(
    "attack",
    [
        "Write about rain.",
        "Write about rain. " * 20,
        "about rain. Write about rain. Write about",
    ],
)
def test_a_copy_of_the_prompt_earns_nothing(folder, attack):
    prompts = list(map(prompt_of, SUBJECTS))
    [score, *_] = scores_of(folder, [attack] * 4, prompts)
    [honest, *_] = scores_of(folder, ["wet cloud drop umbrella"] * 4, prompts)
    assert score < 0.2 * honest
    [unprotected, *_] = scores_of(folder, [attack] * 4, prompts, copied=1000)
    assert math.isfinite(unprotected)


def test_one_keyword_earns_less_than_a_text(folder):
    prompts = list(map(prompt_of, SUBJECTS))
    texts = ["umbrella", "umbrella wet puddle cloud pour storm"]
    scores = [scores_of(folder, [text] * 4, prompts)[0] for text in texts]
    assert 0 < scores[0] < scores[1]


def test_copied_tokens():
    assert are_copied([1, 2, 3, 9], [0, 1, 2, 3], 3) == [True, True, True, False]
    assert are_copied([1, 2, 9, 3], [0, 1, 2, 3], 3) == [False] * 4
    assert are_copied([1, 2], [1, 2], 3) == [False, False]
    assert are_copied([], [1, 2], 1) == []


def test_other_prompts_are_different_ones():
    prompts = ["a", "b", "a", [{"role": "user", "content": "a"}], "c"]
    sample = different_prompts(prompts, 3)
    assert sample == ["a", "b", [{"role": "user", "content": "a"}]]
    assert unrelated_to("a", sample, 1) == ["b"]
    assert unrelated_to("z", sample, 9) == sample


def test_completions_of_a_prompt_are_compared_with_the_same_others(folder):
    """The score of a completion does not depend on the other completions."""
    prompts = list(map(prompt_of, SUBJECTS))
    reward = build("relevance", model=folder, unrelated=prompts)
    texts = ["wet cloud", "flour and oven", "pawn", "the wave"]
    together = reward(completions=texts, prompts=prompts)
    alone = [
        reward(completions=[text], prompts=[prompt])[0]
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    assert together == pytest.approx(alone, abs=1e-5)


def test_without_another_prompt_it_says_what_to_write(folder):
    with pytest.raises(
        ValueError, match="Set the option `unrelated` to a list of different prompts"
    ):
        scores_of(folder, ["wet", "cloud"], ["p", "p"])
    with pytest.raises(ValueError, match="the option `model` must name"):
        build("relevance")(completions=["wet"], prompts=["p"])


def test_conversations_and_parts(folder):
    prompts = [[{"role": "user", "content": prompt_of(subject)}] for subject in SUBJECTS]
    thoughtful = f"{TAGS[0]}pawn rook check{TAGS[1]} wet cloud drop"
    by_part = {
        part: scores_of(folder, [thoughtful] * 4, prompts, part=part)
        for part in ("answer", "thoughts")
    }
    plain = scores_of(folder, ["wet cloud drop"] * 4, prompts)
    assert by_part["answer"] == pytest.approx(plain, abs=1e-5)
    assert by_part["thoughts"] != pytest.approx(plain, abs=1e-2)
    begun = [[*prompt, {"role": "assistant", "content": "It is"}] for prompt in prompts]
    assert all(map(math.isfinite, scores_of(folder, ["wet"] * 4, begun)))


def test_nothing_is_loaded_for_empty_answers():
    assert scores_of("no/such-model", ["", " \n", "<think>why"], ["p", "q", "r"]) == [0.0] * 3


def test_a_model_that_is_not_there_fails_as_a_reward_does(tmp_path):
    guard = Guard(build("relevance", model=str(tmp_path)), max_failure_rate=1.0)
    assert guard(completions=["wet", ""], prompts=["p", "q"]) == [None, 0.0]
    assert "OSError" in guard.last_error or "ValueError" in guard.last_error


@settings(max_examples=60)
@given(st.lists(st.text(max_size=30), min_size=2, max_size=5), st.lists(st.text(max_size=20)))
def test_any_text_gets_a_finite_score(folder, texts, others):
    prompts = [f"{number}{text}" for number, text in enumerate(reversed(texts))]
    for part in ("answer", "all"):
        scores = scores_of(folder, texts, prompts, part=part)
        assert len(scores) == len(texts)
        assert all(map(math.isfinite, scores))
    scores_of(folder, texts, prompts, unrelated=[*others, "x", "y"])


def test_hostile_completions_get_a_finite_score(folder):
    reward = build("relevance", model=folder, unrelated=["x", "y"], num_unrelated=1, max_tokens=64)
    texts = hostile_completions()
    with no_runaway(120.0):
        scores = reward(completions=texts, prompts=["p"] * len(texts))
    assert all(map(math.isfinite, scores))


def test_a_text_longer_than_the_context_is_scored(folder):
    frozen = load_frozen(folder)
    prompt = "wet " * 2 * frozen.context
    [score] = scores_of(folder, ["wet " * 5000], [prompt], unrelated=["x"], max_tokens=2000)
    assert math.isfinite(score)


def test_batches_stay_within_their_bounds(folder, monkeypatch):
    frozen = load_frozen(folder)
    monkeypatch.setattr("grpo_ext.scoring.frozen_model.MOST_TOKENS", 40)
    sizes = []
    batch = FrozenModel.batch

    def noted(self, sequences, lengths):
        sizes.append(len(sequences) * max(map(len, sequences)))
        return batch(self, sequences, lengths)

    monkeypatch.setattr(FrozenModel, "batch", noted)
    pairs = [([5] * length, [6, 7]) for length in (1, 30, 3, 9, 50, 2)]
    logps = frozen.log_probs(pairs)
    assert max(sizes) <= 52
    assert len(sizes) < len(pairs)
    for (prompt, text), of_text in zip(pairs, logps, strict=True):
        assert of_text.tolist() == pytest.approx(plain_log_probs(frozen, prompt, text), abs=1e-4)


def test_a_run_gives_model_and_prompts():
    rows = [{"prompt": f"p{number // 2}", "task": "ab"[number // 2 % 2]} for number in range(40)]
    reward = build("relevance", num_unrelated=2)
    of_task = build("relevance", num_unrelated=2)
    of_task.tasks = ("b",)
    own = build("relevance", model="mine", unrelated=["u"])
    guards = [Guard(reward), of_task, own, build("format"), len]
    set_model(guards, "start", "v1")
    set_prompts(guards, rows)
    assert (reward.options["model"], reward.options["revision"]) == ("start", "v1")
    assert reward.options["unrelated"] == ["p0", "p1", "p2"]
    assert of_task.options["unrelated"] == ["p1", "p3", "p5"]
    assert (own.options["model"], own.options["unrelated"]) == ("mine", ["u"])
    assert own.options["revision"] is None
    of_revision = build("relevance", revision="v2")
    set_model([of_revision], "start", "v1")
    assert (of_revision.options["model"], of_revision.options["revision"]) == ("start", "v2")
    with pytest.raises(ValueError, match="Name the folder or hub id"):
        set_model([build("relevance")], object())


def test_the_explanation_says_what_was_judged():
    explain = lookup("relevance").explain
    assert "Text judged: wet" in explain("<think>why</think>wet", model="m").text
    assert "no text" in explain("<think>why").text
    assert json.dumps(explain("x" * 10**6).text)
