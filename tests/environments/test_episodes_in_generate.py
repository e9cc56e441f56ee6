"""Episodes within `generate`: by transformers' own loop and the fast one, each token read once."""

from __future__ import annotations

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.samplers.lockstep_episodes import hear, write_turn
from grpo_ext.seams.generate import fast_generation, watching
from tests.support.worlds import Counting, Faulty, Wordy

PROMPTS = ["Use 3, 4, 5.", "Use 1.", "Use 9, 9, 1 to make 17."]


@pytest.fixture(scope="module")
def parts(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    return AutoModelForCausalLM.from_pretrained(tiny_folder).eval(), tokenizer


def play(parts, fast=True, room=60, make=Counting, greedy=True, ends=(), **rules):
    """Episodes of all prompts, their prompts' tokens, and how many tokens each pass of the model
    read.
    """
    model, tokenizer = parts
    ends = [tokenizer.eos_token_id, *ends]
    tokens = TurnTokens(tokenizer, ends)
    given = EpisodeRules(make, **{"turn_tokens": 5, **rules})
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]
    episodes = [Episode(given, tokens, room, row) for row in rows]
    batch = tokenizer.apply_chat_template(
        [e.prompt for e in episodes],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        padding=True,
    )
    config = GenerationConfig(
        max_new_tokens=room, do_sample=not greedy, eos_token_id=ends, pad_token_id=0
    )
    read = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: read.append(inputs[0].numel())
    )
    torch.manual_seed(0)
    with torch.no_grad(), watching(model, None, Player(episodes)):
        if fast:
            with fast_generation(model):
                model.generate(**batch, generation_config=config)
        else:
            model.generate(**batch, generation_config=config)
    handle.remove()
    prompts = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    return episodes, prompts, read


@pytest.mark.parametrize("fast", [True, False])
def test_what_the_model_wrote_is_what_it_writes_after_all_before_it(parts, fast):
    """An oracle without a cache.

    Each token of the model is the likeliest after everything that stands before it.
    """
    ends = range(100, 250)  # so that turns end by themselves, too
    episodes, prompts, _ = play(parts, fast, ends=ends)
    for episode, prompt in zip(episodes, prompts, strict=True):
        ids = torch.tensor([prompt + episode.ids])
        likeliest = parts[0](ids).logits[0].argmax(-1)[len(prompt) - 1 : -1]
        wrote = torch.tensor(episode.mask, dtype=torch.bool)
        assert torch.equal(ids[0, len(prompt) :][wrote], likeliest[wrote])
        assert episode.environment.turns == episode.turns == 4 and not episode.truncated
        said = [m["content"] for m in episode.messages if m["role"] == "user"]
        assert said == ["1 of 4", "2 of 4", "3 of 4"]
        assert "".join(parts[1].decode(episode.ids)).count("of 4") == 3


@pytest.mark.parametrize("make", [Counting, Wordy])
def test_both_loops_play_alike(parts, make):
    (fast, _, _), (plain, _, _) = play(parts, make=make), play(parts, fast=False, make=make)
    assert [e.ids for e in fast] == [e.ids for e in plain]
    assert [e.mask for e in fast] == [e.mask for e in plain]
    assert [e.cut_answers for e in fast] == [int(make is Wordy)] * len(fast)


def test_every_token_is_read_once(parts):
    episodes, prompts, read = play(parts, room=200)
    width = max(map(len, prompts))
    needed = len(prompts) * (width - 1) + sum(
        len(e.ids) for e in episodes
    )  # the last token is not read
    assert sum(read) <= 1.15 * needed
    again = sum(
        sum(len(p) + e.mask.index(0, i) for i in turns(e))
        for p, e in zip(prompts, episodes, strict=True)
    )
    assert sum(read) < 0.75 * again  # reading the conversation anew each turn


def test_answers_that_all_rows_read_are_read_together(parts):
    """Turns of five tokens end at the same time here.

    Each token of the model takes a pass, an answer none of its own.
    """
    episodes, _, read = play(parts, room=200)
    assert {len(e.ids) for e in episodes} == {len(episodes[0].ids)}
    assert len(read) == sum(episodes[0].mask) == 4 * 5
    plain, _, one_by_one = play(parts, room=200, fast=False)
    assert len(one_by_one) == len(episodes[0].ids) > 40
    assert [e.ids for e in episodes] == [e.ids for e in plain]


class Third(Counting):
    """The third of them is over after the first turn."""

    def reset(self, row):
        self.most = 1 if "17" in row["prompt"][-1]["content"] else 4


def test_rows_may_leave_while_the_others_read(parts):
    (fast, _, _), (plain, _, _) = (
        play(parts, room=200, make=Third),
        play(parts, room=200, make=Third, fast=False),
    )
    assert [e.turns for e in fast] == [4, 4, 1]
    assert [e.ids for e in fast] == [e.ids for e in plain]


def turns(episode):
    """Where the turns of the model begin that an answer follows."""
    before = [0, *episode.mask[:-1]]
    starts = [
        i for i, (a, b) in enumerate(zip(before, episode.mask, strict=True)) if (a, b) == (0, 1)
    ]
    return [i for i in starts if 0 in episode.mask[i:]]


def test_an_episode_ends_where_there_is_no_room(parts):
    episodes, _, _ = play(parts, room=20)
    for episode in episodes:
        assert episode.truncated and len(episode.ids) <= 20 and episode.mask[-1] == 1
    (one, *_), _, _ = play(parts, room=3)
    assert one.truncated and len(one.ids) == 3 and one.environment.turns == 0


def test_turns_have_a_limit(parts):
    episodes, _, _ = play(parts, turns=2)
    assert [e.turns for e in episodes] == [2, 2, 2] and not any(e.truncated for e in episodes)


def test_faults_of_an_environment_are_answers(parts):
    episodes, _, _ = play(
        parts,
        room=400,
        make=Faulty,
        turns=4,
        step_timeout=3.0,
        answer_characters=30,
        on_failure="train",
    )
    for episode in episodes:
        said = [m["content"] for m in episode.messages if m["role"] == "user"]
        assert said == [
            "error: RuntimeError: no idea",
            "error: timed out after 3 s",
            "x" * 30 + " (cut off)",
        ]
        assert (
            episode.world.failures == 3 and episode.turns == 4
        )  # the last says nothing that can be unpacked


def test_all_completions_of_a_row_face_the_same_world(parts):
    tokens = TurnTokens(parts[1], [parts[1].eos_token_id])
    row = {"prompt": [{"role": "user", "content": "Go."}], "level": 3}
    rules = EpisodeRules(Counting)
    openings = {Episode(rules, tokens, 50, dict(row)).prompt[-1]["content"] for _ in range(3)}
    assert len(openings) == 1
    others = {
        Episode(rules, tokens, 50, {**row, "level": n}).prompt[-1]["content"] for n in range(20)
    }
    assert len(others) > 3


def written(one, tokens, asked):
    """Let the model write, and the environment answer."""
    count = write_turn(one, tokens, asked)
    hear([one])
    return count


def episode(parts, make=Counting, room=50, prompt="Go.", **rules):
    tokens = TurnTokens(parts[1], [parts[1].eos_token_id])
    row = {"prompt": [{"role": "user", "content": prompt}]}
    return Episode(EpisodeRules(make, **rules), tokens, room, row)


def test_a_turn_that_an_engine_cuts_is_kept(parts):
    one = episode(parts)
    assert written(one, [300, 301, 302], asked=3) == 3 and not one.ended and one.turns == 0
    assert one.turn_left() == 47
    assert written(one, [303], asked=5) == 1
    assert (
        one.ended
        and one.truncated
        and one.turns == 1
        and len(one.messages) == 1
        and one.environment.turns == 0
    )


def test_an_answer_that_nobody_reads_is_not_the_last_word(parts):
    one = episode(parts)
    written(one, [300, parts[1].eos_token_id], asked=40)
    assert [m["role"] for m in one.messages] == ["assistant", "user"]
    while one.pending:
        one.read()
    assert written(one, [], asked=40) == 0
    assert one.ended and one.truncated and [m["role"] for m in one.messages] == ["assistant"]


def test_results_of_several_calls_that_nobody_reads_are_dropped(parts):
    one = episode(parts)
    one.messages = [
        {"role": role, "content": ""} for role in ("assistant", "user", "assistant", "tool", "tool")
    ]
    one.cut_off()
    assert (
        one.ended
        and one.truncated
        and [m["role"] for m in one.messages] == ["assistant", "user", "assistant"]
    )


class Leaving(Counting):
    """Ends the program, says one word in place of two, and has no state."""

    def step(self, text):
        self.turns += 1
        return sys.exit(3) if self.turns == 1 else "no"

    def state(self):
        raise RuntimeError("no state")


def test_an_environment_ends_no_run(parts):
    one = episode(parts, Leaving, room=400, on_failure="train")
    for _ in range(2):
        written(one, [300, parts[1].eos_token_id], asked=40)
        while one.pending:
            one.read()
    said = [m["content"] for m in one.messages if m["role"] == "user"]
    assert said == [
        "error: SystemExit: 3",
        (
            "error: TypeError: step must return two values, the answer as a string and whether the "
            "episode is over; it returned 'no'"
        ),
    ]
    assert one.columns()["environment"] == {} and one.world.failures == 3


class Odd(Counting):
    """Fails where no turn has begun, says what is no text, and has a state that cannot be told."""

    def __init__(self, best=float("inf")):
        super().__init__()
        self.best, self.lock = best, object()

    def reset(self, row):
        raise KeyError("level")

    def step(self, text):
        self.turns += 1
        return [("a\ud800b", False), (None, False), (7, False), ("x", False)][self.turns - 1]


def test_what_an_environment_may_say_and_hold(parts):
    one = episode(parts, Odd, room=400, credit="turn", on_failure="train")
    assert (
        one.prompt[-1]["content"].endswith("error: KeyError: 'level'") and one.world.failures == 1
    )
    for _ in range(3):
        written(one, [300, parts[1].eos_token_id], asked=40)
        while one.pending:
            one.read()
    assert [m["content"] for m in one.messages if m["role"] == "user"] == [
        "a?b",
        "",
        "error: TypeError: returned int instead of a string",
    ]
    assert "lock" not in one.environment.state() and "best" not in one.states[0]
    assert one.gains({"turns": 1.0, "best": 1.0}) == [1.0, 1.0, 1.0]


def test_prompts_that_are_no_conversation_are_refused(parts):
    tokens = TurnTokens(parts[1], [parts[1].eos_token_id])
    for prompt in ("Go.", [{"role": "user", "content": [{"type": "text", "text": "Go."}]}]):
        with pytest.raises(ValueError, match="messages whose content is a string"):
            Episode(EpisodeRules(Counting), tokens, 50, {"prompt": prompt})
