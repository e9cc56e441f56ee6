"""The guard: what a reward does wrong costs its rows their score, and nothing else."""

import asyncio
import contextlib
import logging
import math
import signal
import threading
import time

import pytest

from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.rewards import build
from grpo_ext.rewards.guard import AsyncGuard, Guard, RewardFailure, guard_rewards
from grpo_ext.rewards.scores import as_score


def by_row(answer):
    """A reward with TRL's signature from a function of one completion."""

    def reward(completions, **columns):
        return [answer(text) for text in completions]

    return reward


def divide(text: str) -> float:
    return 1 / float(text)


def test_only_the_rows_at_fault_lose_their_score():
    guard = Guard(by_row(divide))
    assert guard(completions=["1", "0", "2", "x", "4"], prompts=["p"] * 5) == [
        1.0,
        None,
        0.5,
        None,
        0.25,
    ]
    assert guard.failed == 2
    assert "could not convert" in guard.last_error


@pytest.mark.parametrize(
    "bad", [math.inf, -math.inf, math.nan, "1.0", [1.0], {}, 1j, object(), 10**400]
)
def test_what_is_no_finite_number_is_a_failure(bad):
    guard = Guard(by_row(lambda text: bad if text == "bad" else 1))
    assert guard(completions=["ok", "bad", "ok"]) == [1.0, None, 1.0]
    assert guard.failed == 1


def test_none_is_an_answer():
    guard = Guard(by_row(lambda text: None))
    assert guard(completions=["a", "b"]) == [None, None]
    assert guard.failed == 0


@pytest.mark.parametrize(
    "answers", [[], [1.0], [1.0] * 4, None, "abc", {0: 1.0, 1: 1.0, 2: 1.0}, 3.0]
)
def test_wrong_shapes_fail_every_row(answers):
    guard = Guard(lambda completions, **columns: answers if len(completions) == 3 else None)
    assert guard(completions=["a", "b", "c"]) == [None] * 3
    assert guard.failed == 3


def test_a_list_that_is_too_short_is_made_up_row_by_row():
    def forgetful(completions, **columns):
        return [1.0 for text in completions if text]

    assert Guard(forgetful)(completions=["a", "", "c"]) == [1.0, None, 1.0]


def test_rows_keep_their_columns_when_scored_alone():
    def reward(completions, gold, trainer_state, log_extra, **columns):
        log_extra("gold", gold)
        if len(completions) > 1:
            raise RuntimeError
        return [float(completions[0] == gold[0]) + trainer_state]

    logged = []
    guard = Guard(reward)
    scores = guard(
        completions=["a", "b"],
        gold=["a", "c"],
        trainer_state=1,
        log_extra=lambda *entry: logged.append(entry),
    )
    assert scores == [2.0, 1.0]
    assert logged == [("gold", ["a", "c"])]  # of the batch, and not again of its rows


@pytest.mark.parametrize(
    "error", [SystemExit, RecursionError, MemoryError, AssertionError, StopIteration]
)
def test_every_kind_of_exception_is_held(error):
    def reward(completions, **columns):
        raise error

    assert Guard(reward)(completions=["a", "b"]) == [None, None]


def test_keyboard_interrupt_is_not_held():
    def reward(completions, **columns):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(reward)(completions=["a"])


def test_each_kind_is_logged_once_with_its_row(caplog):
    guard = Guard(by_row(divide), max_failure_rate=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            guard(completions=["0", "x" * 10_000, "1"], row_id=[7, 8, 9])
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    assert "ZeroDivisionError" in caplog.messages[0] and "'row_id': [7]" in caplog.messages[0]
    assert all(len(message) < 6000 for message in caplog.messages)


def test_too_many_failures_stop_the_run():
    guard = Guard(by_row(divide), window=64, max_failure_rate=0.5)
    for _ in range(8):
        guard(completions=["0", "1"])  # half of them
    with pytest.raises(
        RewardFailure, match=r"(?s)failed on 9 of the last 17 rows.*ZeroDivisionError"
    ):
        guard(completions=["0"])


def test_few_rows_are_no_reason_to_stop():
    guard = Guard(by_row(divide), window=64)
    assert guard(completions=["0"] * 15) == [None] * 15
    with pytest.raises(RewardFailure):
        guard(completions=["0"])


def test_old_failures_are_forgotten():
    guard = Guard(by_row(divide), window=8)
    guard(completions=["1"] * 8)
    for _ in range(10):
        guard(completions=["0", "1", "1", "1"])
    assert guard.failed == 10
    guard(completions=["0"] * 3)  # with the last of the ten, half of the window
    with pytest.raises(RewardFailure, match="5 of the last 8"):
        guard(completions=["0"])


def test_no_failure_allowed_stops_at_the_first():
    guard = Guard(by_row(divide), max_failure_rate=0.0)
    assert guard(completions=["1", "2"]) == [1.0, 0.5]
    with pytest.raises(RewardFailure, match=r"(?s)'completions': \['0'\].*ZeroDivisionError"):
        guard(completions=["1", "0"])


def test_async_rewards_stay_async_and_are_guarded():
    async def judge(completions, **columns):
        await asyncio.sleep(0)
        return [math.inf, 1.0]

    async def broken(completions, **columns):
        raise ValueError("no connection")

    good, bad = guard_rewards([judge, broken])
    assert isinstance(good, AsyncGuard) and asyncio.iscoroutinefunction(type(good).__call__)
    assert asyncio.run(good(completions=["a", "b"])) == [None, 1.0]
    assert asyncio.run(bad(completions=["a", "b"])) == [None, None]
    assert (good.failed, bad.failed, good.__name__) == (1, 2, "judge")


def test_an_async_reward_that_hangs_is_given_up():
    async def judge(completions, **columns):
        await asyncio.sleep(60)

    guard = AsyncGuard(judge, timeout=0.05)
    assert asyncio.run(guard(completions=["a", "b"])) == [None, None]
    assert "TooLate: timed out after 0.1 s" in guard.last_error


def test_guarding_leaves_models_and_guards_alone():
    class Model:
        def parameters(self):
            return []

        def __call__(self):
            return None

    model = Model()
    guarded = Guard(divide)
    reward = build("format")
    out = guard_rewards(["org/model", model, guarded, reward], max_failure_rate=0.0)
    assert out[:3] == ["org/model", model, guarded]
    assert isinstance(out[3], Guard) and out[3].name == "format" and out[3].max_failure_rate == 0


def test_columns_of_any_name_pass():
    assert Guard(by_row(len))(completions=["abc"], self=["x"], reward=["y"]) == [3.0]


def test_numbers_of_other_libraries_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert as_score(numpy.float32(0.5)) == 0.5 and type(as_score(numpy.int64(1))) is float
    assert Guard(lambda completions, **columns: numpy.ones(2))(completions=["a", "b"]) == [1.0, 1.0]


def hang(text: str) -> float:
    while text == "hang":
        pass
    while text == "sleep":
        time.sleep(6000)
    return 1.0


@pytest.mark.parametrize("how", ["hang", "sleep"])
def test_a_hanging_row_is_interrupted(how):
    guard = Guard(by_row(hang), timeout=1.0)
    assert guard(completions=["a", how, "b"]) == [1.0, None, 1.0]
    assert "TooLate: timed out after 1 s" in guard.last_error


def test_no_limit_outside_the_main_thread():
    scores = []
    guard = Guard(by_row(lambda text: time.sleep(0.2) or 1.0), timeout=0.05)
    thread = threading.Thread(target=lambda: scores.extend(guard(completions=["a"])))
    thread.start()
    thread.join()
    assert scores == [1.0]


def test_deadline_is_not_swallowed_by_except_exception():
    with pytest.raises(TooLate), deadline(0.05):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(10)


def test_deadline_leaves_no_timer():
    with deadline(100.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_registered_rewards_are_guarded_alike():
    guard = Guard(build("countdown"))
    scores = guard(completions=["<answer>1+2</answer>"] * 2, nums=[[1, 2], None], target=[3, 3])
    assert scores == [1.0, None]


def test_rows_that_a_reward_declines_do_not_hide_its_failures():
    """It declines three rows of four and fails on all others.

    That is a failure of all rows that it judges.
    """
    guard = Guard(by_row(lambda text: 1 / 0 if text == "mine" else None), window=64)
    texts = ["mine", "b", "c", "d"]
    prompts = ["p", "q", "r", "s"]
    with pytest.raises(RewardFailure, match="failed on 16 of the last 16 rows"):
        for _ in range(16):
            assert guard(completions=texts, prompts=prompts) == [None] * 4
    assert guard.failed == 16


def test_a_batch_that_a_reward_declines_whole_is_no_failure():
    guard = Guard(by_row(lambda text: 1 / 0 if text == "bad" else None), deferred=True)
    for i in range(100):
        guard(completions=["a", "b"], prompts=[f"{i}", "q"])
    assert guard.failure is None and guard.lost_prompts == set()
    guard(completions=["a", "bad"], prompts=["p", "q"])
    assert len(guard.lost_prompts) == 1


@pytest.mark.parametrize("awaited", [False, True])
def test_a_reward_of_some_tasks_sees_only_their_rows(awaited):
    seen = []
    extra = {}

    def reward(completions, prompts, gold, log_extra, **columns):
        seen.append((completions, prompts, gold, columns["task"]))
        log_extra("gold", gold)
        return [float(text == answer) for text, answer in zip(completions, gold, strict=True)]

    async def slow(**given):
        return reward(**given)

    function = slow if awaited else reward
    function.tasks = ("math",)
    guard = (AsyncGuard if awaited else Guard)(function)
    given = {
        "completions": ["1", "def f", "2"],
        "prompts": ["p", "q", "r"],
        "gold": ["1", None, "3"],
        "task": ["math", "code", "math"],
        "log_extra": extra.__setitem__,
    }
    found = guard(**given)
    assert (asyncio.run(found) if awaited else found) == [1.0, None, 0.0]
    assert seen == [(["1", "2"], ["p", "r"], ["1", "3"], ["math", "math"])]
    assert extra == {"gold": ["1", None, "3"]}
    others = guard(**{**given, "task": ["code"] * 3})
    assert (asyncio.run(others) if awaited else others) == [None] * 3
    assert len(seen) == 1 and guard.failed == 0 and guard.lost_prompts == set()


def test_what_a_completion_put_into_an_error_cannot_act_on_a_log_or_terminal(caplog):
    """A lone surrogate cannot be encoded, and an escape sequence would clear the screen."""

    def quotes(completions, **kwargs):
        raise ValueError(f"no number in {completions[0]}")

    guard = Guard(quotes)
    assert guard(prompts=["p"], completions=["\ud800 \x1b[2J"]) == [None]
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "no number in \\ud800 \\x1b[2J" in logged
    logged.encode("utf-8")
    assert "\x1b" not in logged
