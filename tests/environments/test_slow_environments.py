"""Slow answers overlap, in every sampler, and change neither tokens nor draws."""

from __future__ import annotations

import random
import threading

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.played_episodes import seconds_alone
from grpo_ext.environments.start_episodes import beginning
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.evaluation.completions import Decoding, end_tokens, generate_completions
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.async_episodes import play_as_ready
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn
from tests.support.forked import LIMIT
from tests.support.places import REPO
from tests.support.slow_worlds import Gathering, Held, Later, Meeting, MeetingAtStart, Stuck

WORLDS = "tests.support.slow_worlds"
COUNTING = {"name": f"{REPO}/tests/support/worlds.py:Counting"}
ROWS = [{"prompt": [{"role": "user", "content": f"Use {n}."}]} for n in range(16)]


def world(name, **options):
    return {"name": f"{WORLDS}:{name}", "step_timeout": LIMIT, **options}


@pytest.fixture(scope="module")
def parts(tiny_folder):
    """The model, many of whose tokens end a turn, so that turns have unequal lengths."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(100, 180)]
    return model, tokenizer


def beginner(parts, environment, length=400):
    model, tokenizer = parts
    args = GRPOExtConfig("out", max_completion_length=length, use_cpu=True, bf16=False)
    ends = end_tokens(tokenizer, model.generation_config)
    return beginning({"": environment}, tokenizer, ends, args)


def play(parts, environment, fast=True, temperature=1.0):
    """Episodes of all rows, played as in an evaluation."""
    model, tokenizer = parts
    begin = beginner(parts, {"turn_tokens": 12, "most": 3, **environment})
    decoding = Decoding(400, temperature=temperature, seed=5)
    groups = generate_completions(model, tokenizer, ROWS, decoding, fast=fast, begin=begin)
    episodes = [completion.episode for [completion] in groups]
    assert all(one.turns == 3 and not one.world.failures for one in episodes)
    return episodes


def lengths_of_turns(episodes):
    return {
        message["counted_tokens"]
        for one in episodes
        for message in one.logged()["messages"]
        if message["role"] == "assistant"
    }


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "environment", [world("MeetingAsync"), world("Meeting", threads=16)], ids=["async", "threads"]
)
def test_answers_to_turns_of_unequal_lengths_overlap_within_generate(parts, environment, fast):
    Meeting.gatherings = tuple(Gathering(len(ROWS)) for _ in range(3))
    episodes = play(parts, environment, fast)
    assert len(lengths_of_turns(episodes)) > 5
    assert [gathering.come for gathering in Meeting.gatherings] == [16, 16, 16]


@pytest.mark.parametrize("fast", [True, False])
def test_a_slow_environment_changes_no_token(parts, fast):
    """Greedily, because an environment that answers at once has other rows in a batch."""
    at_once = play(parts, COUNTING, fast, temperature=0.0)
    later = play(parts, world("Later"), fast, temperature=0.0)
    assert [one.ids for one in later] == [one.ids for one in at_once]
    assert [one.mask for one in later] == [one.mask for one in at_once]
    assert [one.messages for one in later] == [one.messages for one in at_once]


def test_draws_do_not_depend_on_how_long_answers_take(parts):
    played = []
    for delays in ((0,), range(16), range(16, 0, -1), (30, 0, 0, 0, 0)):
        Later.delays, Later.asked = tuple(delays), 0
        played.append([one.ids for one in play(parts, world("Later"))])
    Later.delays = (0,)
    for threads in (1, 16):
        environment = {**COUNTING, "threads": threads}
        played.append([one.ids for one in play(parts, environment)])
    assert all(ids == played[0] for ids in played)


def test_one_slow_answer_beside_a_server_holds_nobody(parts):
    rows = [{**row, "held": number == 0} for number, row in enumerate(ROWS)]
    Held.over = Gathering(len(rows) - 1)
    episodes = beginner(parts, world("Held", turn_tokens=4, most=3))(rows)
    end = episodes[0].tokens.end

    def complete(ids, most):
        count = random.Random(repr(ids)).randrange(1, most)
        return Turn([*([300] * count), end][:most], [-1.0] * (count + 1))

    played = [PlayedTokens() for _ in episodes]
    prompts = [one.prompt_ids for one in episodes]
    assert play_as_ready(episodes, prompts, played, complete) is None
    assert all(one.turns == 3 and not one.world.failures for one in episodes)
    for one, tokens in zip(episodes, played, strict=True):
        assert [value is None for value in tokens.logps] == [not wrote for wrote in one.mask]


@pytest.mark.parametrize(
    "environment",
    [world("MeetingAtStartAsync"), world("MeetingAtStart", threads=16)],
    ids=["async", "threads"],
)
def test_resets_overlap(parts, environment):
    MeetingAtStart.gathering = Gathering(len(ROWS))
    episodes = beginner(parts, environment)(ROWS)
    assert [one.opening for one in episodes] == ["here"] * 16
    assert all(one.prompt[-1]["content"].endswith("\nhere") for one in episodes)


def one_turn(episode, text):
    episode.take_turn({"role": "assistant", "content": text}, text)


def test_a_call_that_hangs_in_a_thread_gives_its_place_to_another(parts):
    Stuck.released = threading.Event()
    environment = {**world("Stuck", threads=1, most=3, on_failure="train"), "step_timeout": 0.3}
    stuck, other = beginner(parts, environment)(ROWS[:2])
    one_turn(stuck, "stuck")
    one_turn(other, "go")
    other.hear()
    assert other.messages[-1]["content"] == "1 of 3"
    stuck.hear()
    assert stuck.messages[-1]["content"] == "error: timed out after 0.3 s"
    assert stuck.world.failures == 1 and other.world.failures == 0
    Stuck.released.set()


@pytest.mark.parametrize("threads", [None, 2])
def test_faults_of_code_in_the_background_are_answers(parts, threads):
    environment = {"name": f"{REPO}/tests/support/worlds.py:Faulty", "threads": threads}
    if threads is None:
        del environment["threads"]
    [one] = beginner(
        parts,
        {
            **environment,
            "kinds": "raise long none",
            "answer_characters": 200,
            "on_failure": "train",
        },
    )(ROWS[:1])
    for text in ("a", "b", "c"):
        one_turn(one, text)
        one.hear()
        one.pending.clear()
    first, second, third = [m["content"] for m in one.messages if m["role"] == "user"]
    assert first == "error: RuntimeError: no idea"
    assert second.endswith(" (cut off)")
    assert third.startswith("error: TypeError: step must return two values")
    assert one.world.failures == 2


def test_an_error_of_the_kind_of_a_time_limit_is_told_as_it_is(parts):
    [one] = beginner(parts, world("OwnTimeout", on_failure="train"))(ROWS[:1])
    one_turn(one, "a")
    one.hear()
    assert one.messages[-1]["content"] == "error: TimeoutError: the service is slow"


def test_the_seconds_of_the_environment_are_those_in_which_nothing_else_happens(parts):
    tokenizer = parts[1]
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id])
    rules = episode_rules(world("Sleeping"))
    one, other = [Episode(rules, tokens, 400, row, wait=False) for row in ROWS[:2]]
    for episode in (one, other):
        episode.open()
    assert 0.09 < seconds_alone([one, other]) < LIMIT
    assert seconds_alone([one, other]) == 0.0
    one_turn(one, "a")
    one.hear()
    assert seconds_alone([one, other]) > 0.09


def test_threads_must_be_a_number_of_threads():
    with pytest.raises(ValueError, match="threads is 0"):
        episode_rules({**COUNTING, "threads": 0})
