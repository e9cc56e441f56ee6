"""The game of guessing: what strategies win, and what counts as a guess."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.environments.guess import Guess, number_in
from grpo_ext.tasks.guess import GuessTask


def blind(rng, left, guessed):
    return rng.choice([n for n in range(1, 32) if n not in guessed])


def consistent(rng, left, guessed):
    return rng.choice(left)


def halving(rng, left, guessed):
    return left[len(left) // 2]


def won(strategy, target, rng):
    game = Guess()
    game.reset({"seed": target - 1})
    left = list(range(1, 32))
    guessed = []
    for _ in range(5):
        guess = strategy(rng, left, guessed)
        answer, over = game.step(str(guess))
        guessed.append(guess)
        if over:
            return game.score
        left = [n for n in left if (n > guess if answer == "low" else n < guess)]
    return game.score


@pytest.mark.parametrize("strategy, share", [(blind, 5 / 31), (consistent, 0.54), (halving, 1.0)])
def test_what_a_strategy_wins(strategy, share):
    rng = random.Random(0)
    games = [won(strategy, target, rng) for target in range(1, 32) for _ in range(200)]
    assert sum(games) / len(games) == pytest.approx(share, abs=0.02)


@given(st.text())
def test_any_turn_is_answered(text):
    game = Guess()
    game.reset({"seed": 3})
    answer, over = game.step(text)
    assert over == (number_in(text) == 4)
    assert answer in ("low", "high", "yes", "Write one whole number from 1 to 31.")


@pytest.mark.parametrize(
    "text, number",
    [
        *(
            ("17", 17),
            ("<think>1 or 2</think>\n<answer>\n16\n</answer>", 16),
            ("I say 5.", 5),
            ("<think>9</think> 8", 8),
            ("<think><answer>5</answer></think> 6", 6),
            ("<think><answer>5</answer></think> <answer>6</answer>", 6),
        ),
        *(("5 or 6", None), ("", None), ("9" * 4000, None), ("<answer>x</answer> 4", None)),
    ],
)
def test_which_number_a_turn_says(text, number):
    assert number_in(text) == number


def test_held_out_games_have_each_number_equally_often_and_share_no_seed():
    task = GuessTask()
    test, train = ([row["seed"] for row in task.generate(split)] for split in ("test", "train"))
    assert not {*test} & {*train} and len(train) == 1024
    games = [Guess() for _ in test]
    for game, seed in zip(games, test, strict=True):
        game.reset({"seed": seed})
    assert sorted(game.target for game in games) == sorted([*range(1, 32)] * 4)


def test_a_range_of_one_number_is_refused():
    with pytest.raises(ValueError, match=r"low \(3\) must be less than high \(3\)"):
        Guess(low=3, high=3)


def test_what_is_narrowed_rises_by_a_fifth_with_each_halving():
    game = Guess()
    game.reset({"seed": 0})
    found = []
    for guess in ("16", "8", "4", "2", "1"):
        game.step(guess)
        found.append(game.narrowed)
        assert game.state()["used"] == len(found)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and game.score == 1.0
