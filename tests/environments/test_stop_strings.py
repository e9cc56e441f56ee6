"""Turns that end with a stop string: their tokens, in `generate`, in training and played again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.start_episodes import beginning
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.evaluation.completions import Decoding, generate_completions
from grpo_ext.evaluation.evaluate_recipe import evaluate_on, rows_and_rewards
from grpo_ext.preflight.replay import differences, play_again
from grpo_ext.preflight.sample_completions import training_decoding
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.seams.generate import fast_generation, watching
from grpo_ext.trainer.evaluation import decoding_of
from tests.support.episode_gradients import Gradients, Noting, oracle
from tests.support.episode_run import ROWS, WORLD, make
from tests.support.logs import json_rows
from tests.support.worlds import Counting

STOPS = ["1", "2", "3", "4", "5", "6", "7"]
PROMPTS = ["Use 3, 4, 5.", "Use 1.", "Use 9, 9, 1 to make 17."]


@pytest.fixture
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")


def begun(tokenizer, stops, text="Go on.", room=120, **rules):
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id], stop_strings=stops)
    row = {"prompt": [{"role": "user", "content": text}]}
    return Episode(EpisodeRules(Counting, **rules), tokens, room, row)


def test_three_turns_are_the_tokens_of_the_conversation(tokenizer):
    """The template ends a turn that ended with a stop string, by a token that is not trained on."""
    episode = begun(tokenizer, ["= 9", "stop"], turns=3)
    of = episode.tokens.tokens_of
    end = [tokenizer.eos_token_id]
    first = of("3 + 4 = 9")
    assert episode.play_turn(of("3 + 4 = 9 + 2 = 9")) == len(first) > 3
    second = [*of("5 - 1"), *end]
    assert episode.play_turn(second) == len(second)
    third = of("7 = 9")
    assert episode.play_turn([*third, *end]) == len(third)
    assert episode.turn_ids() == [first, second, third] and episode.end == "turns"
    answers = ["1 of 4", "2 of 4"]
    conversation = [*episode.prompt]
    for said, answer in zip(["3 + 4 = 9", "5 - 1"], answers, strict=True):
        conversation.append({"role": "assistant", "content": said})
        conversation.append({"role": "user", "content": answer})
    written = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert episode.prompt_ids + episode.ids == written + third
    assert episode.ids[len(first)] == end[0] and episode.mask[len(first)] == 0
    assert sum(episode.mask) == len(first) + len(second) + len(third)


def test_a_stop_string_is_found_across_tokens_and_only_within_a_turn(tokenizer):
    episode = begun(tokenizer, ["of 4"], turns=3)  # the answers contain it
    of = episode.tokens.tokens_of
    assert episode.play_turn([*of("5"), tokenizer.eos_token_id]) == len(of("5")) + 1
    halves = of("of 4 5")
    assert episode.play_turn(halves) == len(of("of 4"))
    assert episode.turn_texts == ["5", "of 4"]


@pytest.mark.parametrize("fast", [True, False])
def test_the_model_writes_what_it_writes_after_all_before_it(tiny_folder, tokenizer, fast):
    """An oracle without a cache, and each turn has a stop string only in its last token."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    free = [begun(tokenizer, (), text, turn_tokens=12) for text in PROMPTS]
    play(model, tokenizer, free, fast)
    stops = [tokenizer.decode(episode.ids[5:7]) for episode in free]
    episodes = [begun(tokenizer, stops, text, turn_tokens=12) for text in PROMPTS]
    play(model, tokenizer, episodes, fast, stop_strings=stops)
    found = 0
    for episode in episodes:
        ids = torch.tensor([episode.prompt_ids + episode.ids])
        likeliest = model(ids).logits[0].argmax(-1)[len(episode.prompt_ids) - 1 : -1]
        wrote = torch.tensor(episode.mask, dtype=torch.bool)
        assert torch.equal(ids[0, len(episode.prompt_ids) :][wrote], likeliest[wrote])
        found += check_turns(episode, 12, stops)
        assert len(episode.turn_ids()[0]) <= 7
    assert found >= 3


def play(model, tokenizer, episodes, fast, **options):
    """Play episodes greedily within one call of `generate`."""
    batch = tokenizer.pad(
        {"input_ids": [episode.prompt_ids for episode in episodes]}, return_tensors="pt"
    )
    config = GenerationConfig(
        max_new_tokens=120,
        do_sample=False,
        eos_token_id=[tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    with torch.no_grad(), watching(model, None, Player(episodes)):
        if fast:
            with fast_generation(model):
                model.generate(**batch, generation_config=config)
        else:
            model.generate(**batch, generation_config=config)


def check_turns(episode, turn_tokens, stops):
    """Check that each turn ends at its first stop string; return how many have one."""
    found = 0
    for turn in episode.turn_ids():
        whole = episode.tokens.tokenizer.decode(turn)
        before = episode.tokens.tokenizer.decode(turn[:-1])
        assert not any(text in before for text in stops)
        has_stop = any(text in whole for text in stops)
        ended = turn[-1] in episode.tokens.ends or len(turn) == turn_tokens
        assert has_stop or ended or episode.truncated
        found += has_stop
    return found


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_the_gradient_is_the_formula_and_the_log_is_played_again(
    tiny_folder, tokenizer, tmp_path, credit
):
    noted = Gradients()
    world = {**WORLD, "turn_tokens": 12, "credit": credit}
    options = {"generation_kwargs": {"stop_strings": STOPS}, "max_completion_length": 100}
    trainer = make(
        tiny_folder,
        tmp_path,
        [noted],
        Noting,
        max_steps=1,
        loss_type="dapo",
        environment=world,
        **options,
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    wanted = oracle(tiny_folder, noted.weights, trainer.used)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off
    begin = beginning({"": world}, tokenizer, trainer.eos_token_ids, trainer.args)
    samples = json_rows(tmp_path / "samples.jsonl")
    rows = {row["prompt"][0]["content"]: row for row in ROWS}
    ended_by_stops = 0
    for sample in samples:
        asked = sample["prompt"][0]["content"].partition("\n")[0]
        [episode] = begin([rows[asked]])
        play_again(episode, sample)
        assert differences(episode, {}, sample) == []
        ended_by_stops += check_turns(episode, 12, STOPS)
    assert len(samples) == 8 and ended_by_stops >= 4


@pytest.mark.parametrize("fast", [True, False])
def test_single_turns_end_with_the_token_that_completes_a_stop_string(tiny_folder, tmp_path, fast):
    """Without an environment. The rows of a batch end at different tokens, and none has padding."""
    noted = Gradients()
    trainer = make(
        tiny_folder,
        tmp_path,
        [noted],
        Noting,
        [lambda completions, **_: [len(text[0]["content"]) % 5 for text in completions]],
        max_steps=1,
        loss_type="dapo",
        environment=None,
        fast_generate=fast,
        max_completion_length=40,
        generation_kwargs={"stop_strings": STOPS},
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 1 - 1e-4 < logged["sampling/ratio/min"] <= logged["sampling/ratio/max"] < 1 + 1e-4
    wanted = oracle(tiny_folder, noted.weights, trainer.used)
    off = noted.distances(wanted)
    assert max(off.values()) < 1e-5, off
    ended_by_stops = 0
    tokenizer = trainer.processing_class
    for batch in trainer.used:
        for row, mask in zip(batch.rows.completion_ids, batch.rows.completion_mask, strict=True):
            ids = row[mask.bool()].tolist()
            assert not any(text in tokenizer.decode(ids[:-1]) for text in STOPS)
            assert tokenizer.pad_token_id not in ids[:-1]
            ended_by_stops += any(text in tokenizer.decode(ids) for text in STOPS)
    assert ended_by_stops >= 4


def test_sampled_completions_end_with_stop_strings(tiny_folder, tokenizer):
    """Those of `check --sample`, whose reason says what ended them."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    decoding = Decoding(40, temperature=1.0, num_samples=8, stop_strings=tuple(STOPS))
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    reasons = []
    for group in generate_completions(model, tokenizer, rows, decoding):
        for completion in group:
            assert not any(text in tokenizer.decode(completion.ids[:-1]) for text in STOPS)
            has_stop = any(text in tokenizer.decode(completion.ids) for text in STOPS)
            ended = has_stop or completion.ids[-1] == tokenizer.eos_token_id
            assert completion.finish_reason == ("stop" if ended else "length")
            reasons.append(has_stop)
    assert sum(reasons) >= 4


@pytest.mark.parametrize("names", [{"stop_strings": STOPS}, {"use_vllm": True, "stop": STOPS}])
def test_grpo_ext_eval_and_check_end_completions_with_stop_strings(tiny_folder, names):
    """A run with vLLM names them `stop`; transformers evaluates it here."""
    values = {
        "model_name_or_path": str(tiny_folder),
        "task": "countdown",
        "max_completion_length": 40,
        "use_vllm": names.pop("use_vllm", False),
        "use_cpu": True,
        "generation_kwargs": names,
    }
    recipe = load_recipe(None, values)
    assert training_decoding(recipe.flat).stop_strings == tuple(STOPS)
    rows, rewards = rows_and_rewards(recipe, 16)
    _, samples = evaluate_on(recipe, str(tiny_folder), rows, rewards, num_samples=2)
    texts = [sample.text for sample in samples["greedy"] + samples["sampled"]]
    assert not any(text in whole[:-1] for whole in texts for text in STOPS)
    assert sum(whole[-1:] in STOPS for whole in texts) >= 4


@pytest.mark.parametrize("names", [{"stop_strings": STOPS}, {"stop": STOPS}])
def test_an_evaluation_in_a_run_with_vllm_ends_completions_as_its_engine_does(names):
    args = SimpleNamespace(
        eval_temperature=0.0,
        max_completion_length=40,
        eval_top_p=1.0,
        eval_top_k=0,
        eval_min_p=None,
        eval_num_samples=1,
        seed=0,
        generation_kwargs=names,
    )
    assert decoding_of(args).stop_strings == tuple(STOPS)


def test_stop_strings_where_trl_generates_are_refused_before_training(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="with which TRL generates the completions itself"):
        make(
            tiny_folder,
            tmp_path,
            environment=None,
            rewards=["format"],
            loss_normalization="micro_batch",
            generation_kwargs={"stop_strings": STOPS},
        )


def test_completions_of_an_evaluation_in_training_end_with_stop_strings(tiny_folder, tmp_path):
    texts = []

    def score(completions, **_):
        texts.extend(completion[0]["content"] for completion in completions)
        return [0.0 for _ in completions]

    trainer = make(
        tiny_folder,
        tmp_path,
        [],
        Noting,
        [score],
        max_steps=1,
        environment=None,
        max_completion_length=40,
        eval_temperature=1.0,
        generation_kwargs={"stop_strings": STOPS},
    )
    trainer.evaluate(ROWS)
    assert not any(text in whole[:-1] for whole in texts for text in STOPS)
    assert sum(whole[-1:] in STOPS for whole in texts) >= 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": "process"}, "samples with transformers. Remove sampler, or remove stop"),
        ({"use_vllm": True}, "process samples with transformers. Remove use_vllm"),
        ({"generation_kwargs": {"stop_strings": ["x", ""]}}, "none of them empty"),
        ({"generation_kwargs": {"stop_strings": 3}}, "must be a string or a list of strings"),
        ({"generation_kwargs": {"stop": ["x"]}}, "so stop cannot end it"),
    ],
)
def test_what_cannot_end_a_turn_is_refused(settings, words):
    values = {"model_name_or_path": "m", "task": "guess", "environment": "guess"}
    options = {"generation_kwargs": {"stop_strings": ["x"]}, **settings}
    with pytest.raises(RecipeError, match=words):
        load_recipe(None, values | options)
    assert stop_strings_of({"stop_strings": "x"}) == ("x",)
    assert stop_strings_of({"stop": None, "stop_strings": []}) == ()
    for empty in ("", [""]):
        with pytest.raises(ValueError, match="stop must be a string or a list of strings, none"):
            stop_strings_of({"stop": empty})
