"""Environments of Gymnasium, OpenEnv and verifiers, played by name and unchanged."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_ext import Environment, play
from grpo_ext.environments.background import result_of
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.gymnasium_id import GymnasiumEnvironment
from grpo_ext.environments.play import NoTokens, rules_of
from grpo_ext.environments.stepped import outcome
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.tasks.environment_rows import EnvironmentRows

ROW = {"seed": 3}
HELD = """
import grpo_ext


class Held(grpo_ext.Environment):
    def __init__(self):
        self.seeds = range(3)

    def rows(self, split):
        yield from ({"seed": seed} for seed in self.seeds)

    def step(self, text):
        return "", True

    def close(self):
        self.seeds = None
"""
# A class as those of OpenEnv's servers: actions and observations are models of pydantic.
SERVER = '''
from pydantic import BaseModel


class Saying(BaseModel):
    text: str
    metadata: dict = {}


class Bid(BaseModel):
    amount: int
    player: str


class Seen(BaseModel):
    done: bool = False
    reward: float | None = None
    metadata: dict = {}
    echo: str


class Echo:
    def __init__(self, turns=2):
        self.turns, self.said, self.closed = turns, 0, False

    def reset(self, seed=None, episode_id=None):
        return Seen(echo=f"seed {seed}")

    def step(self, action: Saying) -> Seen:
        self.said += 1
        return Seen(echo=action.text, reward=len(action.text) / 4, done=self.said == self.turns)


class Auction(Echo):
    def step(self, action: Bid) -> Seen:
        return Seen(echo=f"{action.player} bids {action.amount}", reward=None, done=True)


class Old:
    """As of Gym before Gymnasium: no seed, four values, texts."""

    def reset(self):
        return "begin"

    def step(self, text):
        return f"{text}?", 0.5, text == "end", {}


class Silent:
    def reset(self):
        return ""


class MCPEnvironment(Echo):
    pass
'''
# A package for verifiers, with rows, several turns and a rubric.
PACKAGE = '''
import asyncio
from threading import Event

import verifiers as vf
from datasets import Dataset


class Counting(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["count"] = 0
        return state

    async def env_response(self, messages, state, **kwargs):
        state["count"] += 1
        answer = [{"role": "user", "content": f"{state['count']} of 2"}]
        if messages[-1].content == "stop":
            state["final_env_response"] = answer
        return answer

    @vf.cleanup
    async def clean(self, state):
        state["cleaned"] = True


def turns(completion, state, **kwargs):
    assert state["cleaned"]
    return sum(message.role == "assistant" for message in completion)


def right(completion, answer, **kwargs):
    return float(completion[-1].content == answer)


def broken(completion, **kwargs):
    raise KeyError("no such thing")


WAITS = Event()
FAILED = Event()


async def together(answer, **kwargs):
    """The episode with the answer 0 fails while the other one is scored."""
    if answer != "0":
        WAITS.set()
        assert await asyncio.to_thread(FAILED.wait, 60)
        return 1.0
    assert await asyncio.to_thread(WAITS.wait, 60)
    FAILED.set()
    raise KeyError("no such thing")


def grouped(completions, **kwargs):
    return [0.0 for _ in completions]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


class Driving(Counting):
    async def get_prompt_messages(self, state):
        return state["prompt"]


def load_environment(kind="counting"):
    data = Dataset.from_list([{"question": f"Say {n}.", "answer": str(n)} for n in range(20)])
    options = {"dataset": data, "system_prompt": "Be brief."}
    if kind == "tools":
        return vf.ToolEnv(tools=[add], rubric=vf.Rubric(funcs=[right]), **options)
    if kind == "broken":
        return Counting(rubric=vf.Rubric(funcs=[broken]), **options)
    if kind == "together":
        return Counting(rubric=vf.Rubric(funcs=[together]), **options)
    if kind == "grouped":
        return Counting(rubric=vf.Rubric(funcs=[grouped]), **options)
    cls = Driving if kind == "driving" else Counting
    rubric = vf.Rubric(funcs=[turns, right], weights=[0.5, 2.0])
    return cls(rubric=rubric, max_turns=3, **options)
'''


@pytest.fixture
def server(tmp_path):
    file = tmp_path / "echo_server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture
def package(tmp_path, monkeypatch):
    pytest.importorskip(
        "verifiers", reason="the package verifiers is not installed: pip install '.[verifiers]'"
    )
    (tmp_path / "counting_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    return "verifiers:counting_package"


@pytest.fixture
def gymnasium():
    return pytest.importorskip(
        "gymnasium", reason="the package gymnasium is not installed: pip install '.[gymnasium]'"
    )


def rows_of(environment, split="train"):
    return list(episode_rules(environment).probe.rows(split))


def test_a_text_becomes_the_only_field_of_an_action_of_openenv(server):
    played = play({"name": f"openenv:{server}:Echo", "args": {"turns": 2}}, ["hi", "you"], ROW)
    assert played.prompt == [{"role": "user", "content": "seed 3"}]
    assert [message["content"] for message in played.messages] == ["hi", "hi", "you"]
    assert played.end == "environment"
    assert played.state == {"score": 1.25, "steps": 2, "invalid_actions": 0}


def test_an_action_of_openenv_with_several_fields_is_json(server):
    world = {"name": f"openenv:{server}:Auction", "invalid_action_reward": -0.5}
    played = play(world, ["7", '{"amount": 7, "player": "A"}'], ROW)
    answer = played.messages[1]["content"]
    assert answer.startswith("error: Input") and "object" in answer
    assert played.end == "environment" and played.errors == []
    assert played.state == {"score": -0.5, "steps": 1, "invalid_actions": 1}


def test_an_action_of_openenv_is_read_without_thoughts_and_tags(server):
    thought = "<think>\n<answer>I bid.</answer>\n</think>\n\n"
    played = play({"name": f"openenv:{server}:Echo"}, [f"{thought}hi", "<answer>you</answer>"], ROW)
    assert played.messages[1]["content"] == "hi" and played.state["score"] == 1.25
    bid = thought + '{"amount": 7, "player": "A"}'
    played = play({"name": f"openenv:{server}:Auction"}, [bid], ROW)
    assert played.end == "environment" and played.state["invalid_actions"] == 0


def test_a_class_of_actions_that_is_not_of_pydantic_is_refused(server):
    for action in (f"{server}:Old", "json:loads"):
        with pytest.raises(ValueError, match="is not a pydantic model"):
            episode_rules({"name": f"openenv:{server}:Echo", "action": action})


@pytest.mark.parametrize("prompt", ["a text", [], [{"role": "user"}], [{"content": [1]}]])
def test_a_prompt_without_text_in_its_last_message_is_refused(server, prompt):
    with pytest.raises(ValueError, match="Episodes need chat prompts"):
        play({"name": f"openenv:{server}:Old"}, ["a"], {**ROW, "prompt": prompt})


def test_a_class_of_gym_gets_the_text(server):
    played = play({"name": f"openenv:{server}:Old"}, ["a", "end"], ROW)
    assert [message["content"] for message in played.messages] == ["a", "a?", "end"]
    assert played.end == "environment" and played.state["score"] == 1.0


def test_a_class_without_step_and_an_unknown_outcome_are_refused(server):
    with pytest.raises(ValueError, match="has no method 'step', so it cannot be played"):
        episode_rules({"name": f"openenv:{server}:Silent"})
    with pytest.raises(ValueError, match="with its own event loop"):
        episode_rules({"name": f"openenv:{server}:MCPEnvironment"})
    with pytest.raises(TypeError, match="step must return"):
        outcome("over")


def test_seeds_are_the_rows_of_an_environment_without_rows(server):
    recipe = load_recipe(
        None,
        {
            "model_name_or_path": "m",
            "output_dir": "out",
            "task": "environment",
            "num_problems": 3,
            "num_test_problems": 2,
            "environment": {"name": f"openenv:{server}:Echo"},
        },
    )
    assert recipe.task.dataset("train")["seed"] == [2, 3, 4]
    assert recipe.task.dataset("test")[0] == {
        "seed": 0,
        "prompt": [{"role": "user", "content": "Begin."}],
    }


def test_the_task_environment_needs_an_environment():
    with pytest.raises(RecipeError, match="uses the rows of the recipe's environment"):
        load_recipe(None, {"model_name_or_path": "m", "task": "environment"})
    with pytest.raises(ValueError, match="cannot be an entry of `tasks`"):
        list(EnvironmentRows().generate("train"))


@pytest.mark.parametrize("package", ["gymnasium", "verifiers"])
def test_a_package_that_is_missing_is_named_with_the_command(package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ValueError, match=f"pip install '{package}>="):
        episode_rules({"name": f"{package}:anything"})


class Noting(Environment):
    def __init__(self):
        self.rest = ""

    def step(self, text):
        return "", True

    def cut_off(self, text):
        self.rest = text


def test_an_environment_learns_of_a_turn_for_which_there_was_no_room():
    episode = Episode(rules_of(Noting()), NoTokens(), 0, ROW)
    episode.take_turn({"role": "assistant", "content": "half a tu"}, "half a tu", stopped=False)
    assert episode.end == "room" and episode.world.state()["rest"] == "half a tu"


def test_a_cut_off_that_is_async_is_a_failure_that_says_so(caplog):
    class Late(Noting):
        async def cut_off(self, text):
            pass

    episode = Episode(rules_of(Late()), NoTokens(), 0, ROW)
    episode.take_turn({"role": "assistant", "content": "half"}, "half", stopped=False)
    assert episode.left_out and "cut_off must not be async" in caplog.text
    assert "The episode is neither scored nor trained on" in caplog.text


def test_rows_are_read_before_the_environment_is_closed(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    rows = EnvironmentRows()
    rows.use_environment({"name": f"{tmp_path}/held.py:Held"})
    assert [row["seed"] for row in rows.generate("train")] == [0, 1, 2]


LAKE = {
    "name": "gymnasium:FrozenLake-v1",
    "args": {"is_slippery": False},
    "actions": ["left", "down", "right", "up"],
    "invalid_action_reward": -0.25,
}


def test_frozen_lake_is_played_with_words(gymnasium):
    thought = "<think><answer>left</answer></think>"
    turns = ["down", "I go <answer>down</answer>", "left or right", *["right"] * 2]
    turns += [f"{thought}down", f"{thought}<answer>right</answer>"]
    played = play(LAKE, turns, ROW)
    assert played.prompt[0]["content"] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert played.messages[1]["content"] == "(Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert played.messages[5]["content"] == "Write one of: left, down, right, up."
    assert played.end == "environment" and played.errors == []
    assert played.state == {"score": 0.75, "steps": 6, "invalid_actions": 1}


def test_a_group_of_blackjack_has_the_same_cards(gymnasium):
    world = {"name": "gymnasium:Blackjack-v1"}
    games = [play(world, ["nothing", "1", "0"], ROW) for _ in range(2)]
    assert games[0].messages == games[1].messages and games[0].state == games[1].state
    assert games[0].messages[1]["content"] == "Write one whole number from 0 to 1."
    assert games[0].prompt[0]["content"].startswith("(")


def test_words_of_actions_may_have_blanks_and_numbers_have_signs(gymnasium):
    words = ["turn left", "go-on", "turn", "left"]
    world = {**LAKE, "actions": words}
    turns = ["I TURN LEFT.", "<answer>go-on</answer>", "turn, left", "-1"]
    played = play(world, turns, ROW)
    told = [message["content"] for message in played.messages[1::2]]
    assert told[0].startswith("(Left)") and told[1].startswith("(Down)")
    assert told[2] == f"Write one of: {', '.join(words)}."
    numbered = play({"name": "gymnasium:Blackjack-v1"}, ["-1"], ROW)
    assert numbered.messages[1]["content"] == "Write one whole number from 0 to 1."


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({**LAKE, "actions": ["up", "UP", "left", "right"]}, "two words in `actions` are equal"),
        ({"name": "gymnasium:Pendulum-v1"}, "the action space Box, but only Discrete and Text"),
        (
            {"name": "gymnasium:Blackjack-v1", "actions": ["hit"]},
            r"wrong number of words: 1, but the environment has 2 actions",
        ),
        ({"name": "gymnasium:Lake-v9"}, "Lake"),
    ],
)
def test_environments_of_gymnasium_that_a_text_cannot_play_are_refused(gymnasium, world, words):
    with pytest.raises(ValueError, match=words):
        episode_rules(world)


def test_an_environment_whose_actions_do_not_fit_is_closed(gymnasium, monkeypatch):
    closed = []
    monkeypatch.setattr(gymnasium.Env, "close", lambda world: closed.append(world))
    monkeypatch.setattr(gymnasium.Wrapper, "close", lambda world: closed.append(world))
    with pytest.raises(ValueError, match="wrong number of words"):
        GymnasiumEnvironment("Blackjack-v1", actions=["hit"])
    assert len(closed) >= 1


def test_the_rows_of_a_package_for_verifiers_have_its_prompts(package):
    rows = rows_of(package)
    assert len(rows) == 20
    assert rows[4]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say 4."},
    ]
    with pytest.raises(ValueError, match="has no data for the split 'test'"):
        rows_of(package, "test")


def test_several_turns_of_verifiers_are_scored_by_the_rubric(package):
    row = {**ROW, **rows_of(package)[4]}
    played = play(package, ["a", "b", "4", "not played"], row)
    contents = [message["content"] for message in played.messages]
    assert contents == ["a", "1 of 2", "b", "2 of 2", "4"]
    assert played.end == "environment" and played.errors == []
    assert played.state == {"turns": 3.0, "right": 1.0, "num_turns": 3.0, "score": 3.5}


def test_a_turn_of_verifiers_that_is_cut_off_is_scored(package):
    world = episode_rules(package).make()
    assert world.state() == {"turns": None, "right": None, "num_turns": None, "score": None}
    result_of(world.reset({**ROW, **rows_of(package)[4]}), 60.0)
    world.cut_off("4")
    assert world.state() == {"turns": 1.0, "right": 1.0, "num_turns": 1.0, "score": 2.5}
    assert world._rollout["is_truncated"] and world.state()["score"] == 2.5


def test_a_final_answer_of_verifiers_ends_the_episode(package):
    played = play(package, ["stop", "not played"], {**ROW, **rows_of(package)[4]})
    assert played.end == "environment" and played.counts.turns == 1
    assert played.state["turns"] == 1.0


def test_tools_of_verifiers_are_called_and_counted(package):
    world = {"name": package, "args": {"kind": "tools"}}
    calls = [
        {"name": "add", "arguments": {"a": 2, "b": 3}},
        {"name": "add", "arguments": {"a": "x", "b": 3}},
        {"name": "add", "arguments": {"c": 3}},
    ]
    played = play(world, [*calls, "4"], {**ROW, **rows_of(world)[4]})
    answers = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert (
        answers[0] == "5"
        and "can only concatenate" in answers[1]
        and answers[2].startswith("error: ")
    )
    assert played.end == "environment"
    assert played.state["score"] == 1.0 and played.state["add_calls"] == 2.0


def test_a_function_of_a_rubric_that_raises_leaves_the_episode_out(package):
    world = {"name": package, "args": {"kind": "broken"}}
    played = play(world, ["a", "stop"], {**ROW, **rows_of(world)[0]})
    assert played.state == {}
    assert "no such thing" in played.errors[0]


def test_an_error_in_the_rubric_of_verifiers_belongs_to_its_own_episode(package):
    world = {"name": package, "args": {"kind": "together"}}
    rules = episode_rules(world)
    worlds = []
    for row in rows_of(world)[:2]:
        worlds.append(rules.make())
        result_of(worlds[-1].reset({**ROW, **row}), 60.0)
        worlds[-1].cut_off("a")
    with ThreadPoolExecutor(2) as threads:
        failing, other = [threads.submit(world.state) for world in worlds]
        assert other.result() == {"together": 1.0, "num_turns": 1.0, "score": 1.0}
        with pytest.raises(RuntimeError, match="no such thing"):
            failing.result()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("driving", "overrides 'get_prompt_messages', a method with which verifiers calls"),
        ("grouped", "has a reward function for whole groups"),
    ],
)
def test_environments_of_verifiers_that_need_its_rollout_are_refused(package, kind, words):
    with pytest.raises(ValueError, match=words):
        episode_rules({"name": package, "args": {"kind": kind}})


def test_verifiers_leaves_the_handlers_of_signals(package):
    before = signal.getsignal(signal.SIGTERM)
    episode_rules(package)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_row_from_elsewhere_is_a_failure_of_reset(package):
    played = play(package, ["a"], ROW)
    assert "Set `task: environment`" in played.errors[0]
