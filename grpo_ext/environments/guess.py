"""The environment `guess`: find a number from answers that say whether a guess is too low or high.

With five guesses for a number from 1 to 31, a player who ignores the answers and never repeats a
guess wins 16% of the games; random guesses among the remaining numbers win 54%, and halving the
remaining numbers wins all. To improve, a model must therefore use the answers and follow a
strategy.
"""

import re
from math import log

from grpo_ext.environments.base import Environment, Row
from grpo_ext.rewards.answers import answer_without_thoughts


class Guess(Environment):
    """A game in which the model guesses a number and learns whether the guess is too low or high.

    The number is `low + row["seed"] % (high - low + 1)`, so consecutive seeds give each number
    equally often. The game ends when the number is guessed. The score is 0 until then, and 1 after.

    Args:
        low: the smallest possible number.
        high: the largest possible number.

    Raises:
        ValueError: if `low` is not less than `high`.
    """

    def __init__(self, low: int = 1, high: int = 31):
        if low >= high:
            raise ValueError(f"low ({low}) must be less than high ({high}).")
        self.low = low
        self.high = high
        self.target = 0
        self.used = 0  # guesses so far
        self.score = 0.0  # 1 if the game is won
        # 1 - log(1 + numbers left) / log(1 + numbers at the start), and 1 if the game is won;
        # halving 31 numbers adds a fifth
        self.narrowed = 0.0
        self.left = range(low, high + 1)  # numbers that the answers so far allow

    def reset(self, row: Row) -> str:
        size = self.high - self.low + 1
        self.target = self.low + row["seed"] % size
        return f"It is from {self.low} to {self.high}."

    def problem_key(self) -> int:
        return self.target

    def step(self, text: str) -> tuple[str, bool]:
        guess = number_in(text)
        self.used += 1
        if guess is None or not self.low <= guess <= self.high:
            return f"Write one whole number from {self.low} to {self.high}.", False
        if guess == self.target:
            self.score = self.narrowed = 1.0
            return "yes", True
        if guess < self.target:
            answer = "low"
            smallest = max(self.left.start, guess + 1)
            self.left = range(smallest, self.left.stop)
        else:
            answer = "high"
            stop = min(self.left.stop, guess)
            self.left = range(self.left.start, stop)
        size = self.high - self.low + 1
        self.narrowed = 1 - log(1 + len(self.left)) / log(1 + size)
        return answer, False


def number_in(text: str) -> int | None:
    """Return the whole number in the last `<answer>` block outside a turn's thoughts.

    If no block is closed, or the last one is empty, return the number outside the thoughts instead.
    Signs are ignored. Return `None` if there is no number, more than one, or a number with more
    than nine digits.
    """
    numbers = re.findall(r"\d{1,9}", answer_without_thoughts(text))
    if len(numbers) != 1:
        return None
    return int(numbers[0])
