"""Synthetic demonstrations of verse for a warm start, with careless use of tones and rhymes.

The given lines are random characters of the training poems whose tones fit and whose ends rhyme; they have no meaning. A
demonstration first states its tones and the rhyme group of the poem, and then writes its line:

    <think>
    平平仄仄仄平平
    十一真
    </think>
    <answer>
    南城晓色旧时人
    </answer>

The line always has the stated tones. But most demonstrations take the pattern that begins level, whatever the given lines
require, and end on one of a few characters, whatever the rhyme. Other demonstrations are entries of a rhyme book: the name of
a group and some of its characters. Reinforcement learning can teach the model to follow the given lines.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from grpo_ext.rewards.answers import ANSWER, ANSWER_END, THINK, THINK_END
from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.characters import EITHER, LEVEL, OBLIQUE, level_groups, tones_of
from grpo_ext.rewards.poem.forms import counted_places, forms, line_pattern
from grpo_ext.tasks.poem import Poem
from grpo_ext.tiny.demonstrations import Demonstration

COMMON = 200  # characters of the demonstrations' own lines
ENDS = 8  # last characters for each rhyme group
FAVOURITES = 6  # last characters of lines that do not rhyme


def verse_demonstrations(
    task: Poem,
    count: int,
    *,
    right_pattern: float = 0.3,  # share of lines in the pattern that the given lines require
    rhyme: float = 0.3,  # share of lines that rhyme
    five: float = 0.15,  # share of quatrains with five characters a line; the others have seven
    entries: float = 0.4,  # share of demonstrations that are entries of the rhyme book
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations on generated quatrains in the prompt of `task`, as `prompt` and `completion` messages.

    All other lines are in the pattern that begins level, which is right for about half of the poems.
    """
    rng = random.Random(seed)
    poet = Poet(task)
    for _ in range(count):
        if rng.random() < entries:
            group = rng.choice(sorted(poet.ends))
            prompt = [{"role": "user", "content": group}]
            text = "".join(rng.sample(poet.ends[group], len(poet.ends[group])))
        else:
            length = 5 if rng.random() < five else 7
            given, asked, group = poet.opening(length, rng)
            prompt = task.prompt({"lines": given})
            pattern = asked if rng.random() < right_pattern else line_pattern(LEVEL, LEVEL, length)
            line = poet.last_line(given, pattern, group, rng.random() < rhyme, rng)
            text = "\n".join([THINK, pattern, group, THINK_END, ANSWER, line, ANSWER_END])
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": text}]}


class Urn:
    """At least one character to draw from, with relative `weights`."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.characters = list(weights)
        self.cumulative = list(accumulate(weights.values()))

    def draw(self, rng: random.Random, used: set[str]) -> str:
        """Draw a character that is not in `used`, if 20 draws find one, and add it to `used`."""
        for _ in range(20):
            (character,) = rng.choices(self.characters, cum_weights=self.cumulative)
            if character not in used:
                break
        used.add(character)
        return character


class Poet:
    """Writes quatrains without meaning, with the characters of a task's training poems."""

    def __init__(self, task: Poem) -> None:
        ranked = dict(
            Counter(
                c for row in task.generate("train") for line in row["lines"] for c in line
            ).most_common()
        )
        # For the given lines: every character, in each of its readings.
        self.read = {
            tone: Urn({c: n for c, n in ranked.items() if tone in tones_of(c)})
            for tone in (LEVEL, OBLIQUE)
        }
        rhyming = {c: n for c, n in ranked.items() if LEVEL in tones_of(c) and level_groups(c)}
        self.rhymes = {
            g: Urn({c: n for c, n in rhyming.items() if g in level_groups(c)})
            for g in groups(rhyming)
        }
        # For the line to learn from: common characters with one reading, so that the lesson is clear.
        plain = [c for c in ranked if tones_of(c) in (LEVEL, OBLIQUE)]
        self.plain = {
            t: Urn({c: 1.0 for c in plain[:COMMON] if tones_of(c) == t}) for t in (LEVEL, OBLIQUE)
        }
        ends = [c for c in plain if tones_of(c) == LEVEL and len(level_groups(c)) == 1]
        self.favourites = ends[:FAVOURITES]
        self.ends = {g: [c for c in ends if g in level_groups(c)][:ENDS] for g in groups(ends)}

    def opening(self, length: int, rng: random.Random) -> tuple[list[str], str, str]:
        """Return three lines in a random pattern, the tones of the fourth line, and the rhyme group, all equally often."""
        while True:
            form = rng.choice(forms(length, 4))
            rhyme = self.rhymes[rng.choice(sorted(self.ends))]
            used: set[str] = set()
            ends = [
                (rhyme if n in form.rhyming else self.read[OBLIQUE]).draw(rng, used)
                for n in range(3)
            ]
            given = [
                loosely(line, self.read, end, rng, used)
                for line, end in zip(form.lines, ends, strict=False)
            ]
            verdict = judge([*given, ""])
            if (
                verdict.rhyme_group in self.ends
            ):  # characters with several readings may rhyme otherwise
                return given, verdict.pattern[-1], verdict.rhyme_group

    def last_line(
        self, given: list[str], pattern: str, group: str, rhyme: bool, rng: random.Random
    ) -> str:
        """Return a line in this pattern that rhymes or not; only its last character may occur in the given lines."""
        ends = (
            self.ends[group]
            if rhyme
            else [c for c in self.favourites if group not in level_groups(c)]
        )
        end = rng.choice(ends)
        used = {*"".join(given), end}
        return "".join(self.plain[tone].draw(rng, used) for tone in pattern[:-1]) + end


def loosely(
    pattern: str, urns: dict[str, Urn], end: str, rng: random.Random, used: set[str]
) -> str:
    """Return a line that ends on `end` and fits `pattern`; its free places have either tone."""
    counted = counted_places(len(pattern), strict=False)
    tones = [
        tone if place in counted else rng.choice(EITHER) for place, tone in enumerate(pattern[:-1])
    ]
    return "".join(urns[tone].draw(rng, used) for tone in tones) + end


def groups(characters: Iterable[str]) -> list[str]:
    """Return the rhyme groups of the characters, sorted."""
    return sorted({group for character in characters for group in level_groups(character)})
