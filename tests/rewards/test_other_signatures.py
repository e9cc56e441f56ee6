"""Rewards of ms-swift and verl, named as `file.py:name`, are called as these projects call them."""

from __future__ import annotations

import asyncio

import pytest

from grpo_ext.rewards.reward_specs import check_columns, resolve_rewards

FILE = '''
class ORM:
    """The base class, as in ms-swift."""

    def __init__(self, args=None, **kwargs):
        self.args = args


class AsyncORM(ORM):
    pass


class Contains(ORM):
    def __call__(self, completions, solution, **kwargs):
        return [float(gold in text) for text, gold in zip(completions, solution)]


class Short(ORM):
    def __call__(self, infer_requests, response_token_ids, **kwargs):
        assert all(isinstance(text, str) for text in infer_requests)
        return [float(len(ids) < 3) for ids in response_token_ids]


class Later(AsyncORM):
    async def __call__(self, completions, **kwargs):
        return [float(len(text)) for text in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    bonus = 0.5 if (extra_info or {}).get("hard") else 0.0
    return {"score": float(ground_truth in solution_str) + bonus, "source": data_source}


def bare(solution_str, ground_truth, scale=2.0):
    return scale * (solution_str == ground_truth)


async def slow(solution_str, ground_truth, **kwargs):
    return 1.0


def messages(completions, **kwargs):
    """As open-r1 writes rewards."""
    return [float(len(completion[0]["content"])) for completion in completions]
'''
COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("so 12", "no")]
TRL = {"prompts": ["p", "p"], "completion_ids": [[1, 2, 3], [4]], "trainer_state": None}


def named(tmp_path, name, **options):
    path = tmp_path / "score.py"
    path.write_text(FILE, encoding="utf-8")
    (reward,), _ = resolve_rewards([{"name": f"{path}:{name}", **options}])
    return reward


def test_an_orm_of_ms_swift_gets_texts(tmp_path):
    reward = named(tmp_path, "Contains")
    assert reward.__name__ == "Contains"
    assert reward(completions=COMPLETIONS, solution=["12", "12"], **TRL) == [1.0, 0.0]
    assert named(tmp_path, "Short")(completions=COMPLETIONS, **TRL) == [0.0, 1.0]


def test_the_columns_of_an_orm_are_checked_before_a_run(tmp_path):
    check_columns([named(tmp_path, "Contains")], ["prompt", "solution"])
    check_columns([named(tmp_path, "Short")], ["prompt", "solution"])
    with pytest.raises(ValueError, match="Reward 'Contains' reads the column 'solution'"):
        check_columns([named(tmp_path, "Contains")], ["prompt"])


def test_an_async_orm_is_awaited(tmp_path):
    reward = named(tmp_path, "Later")
    assert asyncio.run(reward(completions=COMPLETIONS, **TRL)) == [5.0, 2.0]


def test_a_compute_score_of_verl_judges_each_row(tmp_path):
    rows = {
        "data_source": ["a", "b"],
        "reward_model": [{"ground_truth": "12"}, {"ground_truth": "no"}],
        "extra_info": [{"hard": True}, None],
    }
    reward = named(tmp_path, "compute_score")
    check_columns([reward], ["prompt", *rows])
    assert reward(completions=COMPLETIONS, **rows, **TRL) == [1.5, 1.0]
    del rows["extra_info"]
    assert reward(completions=COMPLETIONS, **rows, **TRL) == [1.0, 1.0]
    with pytest.raises(ValueError, match="reads the column 'reward_model'"):
        check_columns([reward], ["prompt", "solution"])


def test_a_compute_score_takes_options_and_plain_ground_truths(tmp_path):
    reward = named(tmp_path, "bare", scale=4.0)
    assert reward(completions=COMPLETIONS, reward_model=["so 12", "12"], **TRL) == [4.0, 0.0]


def test_a_column_named_like_a_parameter_of_a_compute_score_is_not_passed(tmp_path):
    rows = {"reward_model": ["so 12", "12"], "scale": [7.0, 7.0]}
    assert named(tmp_path, "bare")(completions=COMPLETIONS, **rows, **TRL) == [2.0, 0.0]
    reward = named(tmp_path, "bare", scale=4.0)
    assert reward(completions=COMPLETIONS, **rows, **TRL) == [4.0, 0.0]


def test_an_async_compute_score_is_refused_with_what_to_write(tmp_path):
    with pytest.raises(ValueError, match=r"slow is async.*`async def reward"):
        named(tmp_path, "slow")


def test_a_reward_of_open_r1_gets_messages(tmp_path):
    assert named(tmp_path, "messages")(completions=COMPLETIONS, **TRL) == [5.0, 2.0]


def test_a_file_that_imports_ms_swift_without_it_gets_the_lines_to_write(tmp_path):
    path = tmp_path / "plugin.py"
    path.write_text("from swift.rewards import ORM, orms\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ms-swift, which is not installed.*`class ORM:`"):
        resolve_rewards([f"{path}:Mine"])
