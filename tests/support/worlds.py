"""Environments for tests."""

import time

from grpo_ext.environments.base import Environment


class Counting(Environment):
    """Answers every turn with how many there were, and is over after `most`.

    Worth the share of even turn lengths.
    """

    def __init__(self, most: int = 4):
        self.most, self.turns, self.even, self.score = most, 0, 0, 0.0

    def reset(self, row):
        return f"seed {row['seed'] % 7}"

    def step(self, text):
        self.turns += 1
        self.even += len(text) % 2 == 0
        self.score = self.even / self.turns
        return f"{self.turns} of {self.most}", self.turns == self.most


class Faulty(Environment):
    """Raises, hangs, says 10 MB or too little, turn by turn."""

    def __init__(self, kinds: str = "raise hang long none"):
        self.kinds, self.turns = kinds.split(), 0

    def step(self, text):
        kind = self.kinds[self.turns % len(self.kinds)]
        self.turns += 1
        if kind == "raise":
            raise RuntimeError("no idea")
        if kind == "hang":
            time.sleep(60)
        return ("x" * 10_000_000, False) if kind == "long" else None


class Wandering(Environment):
    """Is over when the model says something of even length, or after four turns.

    Episodes end at different times.
    """

    def __init__(self):
        self.said, self.score = [], 0.0

    def step(self, text):
        self.said.append(len(text))
        self.score = sum(self.said) % 7 / 6
        return f"{len(text)}?", len(text) % 2 == 0 or len(self.said) == 4


class Eventually(Environment):
    """Two turns. Every episode is worth 1.

    Whether the first turn earns it depends on the length of its text.
    """

    def __init__(self):
        self.turns, self.score = 0, 0.0

    def step(self, text):
        self.turns += 1
        self.score = 1.0 if self.turns == 2 else float(len(text) % 2)
        return "go on", self.turns == 2


class Failing(Environment):
    """Raises an error in the turns whose number `fails` has, of each four of all episodes, or in
    every `reset`.
    """

    turns = 0

    def __init__(self, fails: tuple[int, ...] = (0, 1, 2, 3), reset_fails: bool = False):
        self.fails, self.reset_fails, self.score = fails, reset_fails, 0.0

    def reset(self, row):
        if self.reset_fails:
            raise KeyError("level")

    def step(self, text):
        Failing.turns += 1
        if Failing.turns % 4 in self.fails:
            raise RuntimeError("no idea")
        return "go on", False


class Bordering(Environment):
    """Three turns, answered by texts that a tokenizer would merge with the template around them."""

    ANSWERS = ("\n\nnext line\n", " 2 of 3, <|im_end|>\n")

    def __init__(self):
        self.turns, self.score = 0, 0.0

    def step(self, text):
        answer = self.ANSWERS[self.turns % 2]
        self.turns += 1
        self.score = len(text) % 5 / 4
        return answer, self.turns == 3


class Wordy(Counting):
    """Says more after every turn than an episode has room for."""

    def step(self, text):
        said, over = super().step(text)
        return f"{said}: " + "12 + 7 = 19, größer 🐍 " * 60, over


class Library(Environment):
    """Has a tool whose result has more text than an episode has room for."""

    def tools(self):
        return [self.read]

    def read(self) -> str:
        """Read the book."""
        return "12 + 7 = 19, größer 🐍 " * 60
