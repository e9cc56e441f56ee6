"""Synthetic demonstrations of verse for a warm start, with careless use of tones and rhymes.

The given lines consist of random characters from the training poems, with fitting tones and rhyming
ends but no meaning. A demonstration first states the tones of its line and the rhyme group of the
poem, and then adds the line:

    <think>
    平平仄仄仄平平
    十一真
    </think>
    <answer>
    南城晓色旧时人
    </answer>

The line always has the stated tones. However, most demonstrations use the pattern that begins with
a level tone, whatever the given lines require, and end with one of a few characters that do not
rhyme with these lines. Other demonstrations are entries of a rhyme book: the name of a group and
some of its characters. Reinforcement learning can teach the model to follow the given lines.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from grpo_ext.rewards.answers import ANSWER, ANSWER_END, THINK, THINK_END
from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.characters import EITHER, LEVEL, OBLIQUE, level_groups, tones_of
from grpo_ext.rewards.poem.forms import counted_places, forms, line_pattern
from grpo_ext.tasks.poem import Poem
from grpo_ext.tiny.demonstrations import Demonstration

COMMON = 200  # number of common characters, of which the demonstrated lines consist
ENDS = 8  # number of last characters for each rhyme group
FAVORITES = 6  # number of last characters for lines that do not rhyme
Weights = dict[str, float]  # how often each character is drawn, relative to the others


def verse_demonstrations(
    task: Poem,
    count: int,
    *,
    right_pattern: float = 0.3,
    rhyme: float = 0.3,
    five: float = 0.15,
    entries: float = 0.4,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield demonstrations of verse, as dicts with `prompt` and `completion` messages.

    Args:
        task: the task that provides the characters and the prompt.
        count: the number of demonstrations.
        right_pattern: the share of lines in the pattern that the given lines require. All others
            are in the pattern that begins with a level tone, which is correct for about half of the
            poems.
        rhyme: the share of lines that rhyme.
        five: the share of quatrains with five characters per line; the others have seven.
        entries: the share of demonstrations that are entries of the rhyme book instead: the name of
            a rhyme group as the prompt, and some of its characters as the completion.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    poet = Poet(task)
    for _ in range(count):
        if rng.random() < entries:
            group = rng.choice(sorted(poet.ends))
            ends = poet.ends[group]
            prompt = [{"role": "user", "content": group}]
            text = "".join(rng.sample(ends, len(ends)))
        else:
            length = 5 if rng.random() < five else 7
            lines, pattern, group = poet.opening(length, rng)
            prompt = task.prompt({"lines": lines})
            if rng.random() >= right_pattern:
                pattern = line_pattern(LEVEL, LEVEL, length)
            rhymes = rng.random() < rhyme
            line = poet.last_line(lines, pattern, group, rhymes, rng)
            thought = f"{THINK}\n{pattern}\n{group}\n{THINK_END}"
            text = f"{thought}\n{ANSWER}\n{line}\n{ANSWER_END}"
        completion = [{"role": "assistant", "content": text}]
        yield {"prompt": prompt, "completion": completion}


class Urn:
    """A nonempty set of characters to draw from at random, with relative weights."""

    def __init__(self, weights: Weights) -> None:
        self.characters = list(weights)
        self.cumulative = list(accumulate(weights.values()))

    def draw(self, rng: random.Random, used: set[str]) -> str:
        """Draw a character that is not in `used`, add it to `used`, and return it.

        If the first 20 characters drawn are all in `used`, return the last of them.
        """
        for _ in range(20):
            (character,) = rng.choices(self.characters, cum_weights=self.cumulative)
            if character not in used:
                break
        used.add(character)
        return character


class Poet:
    """Composes meaningless quatrains from the characters of a task's training poems.

    The attribute `ends` maps the name of each rhyme group to the characters with which a rhyming
    last line may end.
    """

    def __init__(self, task: Poem) -> None:
        counts: Counter[str] = Counter()
        for row in task.generate("train"):
            counts.update("".join(row["lines"]))
        frequencies = dict(counts.most_common())
        # For the given lines: every character, with each of its pronunciations.
        readings: dict[str, Weights] = {LEVEL: {}, OBLIQUE: {}}
        rhymes: dict[str, Weights] = defaultdict(dict)
        # For the demonstrated line: common characters with one pronunciation are easier to learn.
        with_one_tone: dict[str, list[str]] = {LEVEL: [], OBLIQUE: []}
        ends: dict[str, list[str]] = defaultdict(list)
        self.favorites: list[str] = []
        for character, frequency in frequencies.items():
            tones = tones_of(character)
            groups = level_groups(character)
            for tone in readings:
                if tone in tones:
                    readings[tone][character] = frequency
            if LEVEL in tones:
                for group in groups:
                    rhymes[group][character] = frequency
            num_common = sum(map(len, with_one_tone.values()))
            if tones in with_one_tone and num_common < COMMON:
                with_one_tone[tones].append(character)
            if tones == LEVEL and len(groups) == 1:
                if len(self.favorites) < FAVORITES:
                    self.favorites.append(character)
                [group] = groups
                if len(ends[group]) < ENDS:
                    ends[group].append(character)
        self.ends = dict(sorted(ends.items()))
        self.by_tone = {tone: Urn(weights) for tone, weights in readings.items()}
        self.rhymes = {group: Urn(weights) for group, weights in rhymes.items()}
        self.common_by_tone = {}
        for tone, characters in with_one_tone.items():
            self.common_by_tone[tone] = Urn(dict.fromkeys(characters, 1.0))

    def opening(self, length: int, rng: random.Random) -> tuple[list[str], str, str]:
        """Return three lines, the tones of the fourth line, and the rhyme group.

        A form and a rhyme group are drawn uniformly at random for the lines. `judge` then
        determines the returned tones and group, which can differ from the drawn ones if characters
        have several pronunciations. If the group is not in `ends`, new lines are drawn. `length` is
        the number of characters per line, 5 or 7.
        """
        while True:
            form = rng.choice(forms(length, 4))
            group = rng.choice(sorted(self.ends))
            rhyme = self.rhymes[group]
            used: set[str] = set()
            ends = []
            for number in range(3):
                urn = rhyme if number in form.rhyming else self.by_tone[OBLIQUE]
                ends.append(urn.draw(rng, used))
            lines = []
            for pattern, end in zip(form.lines, ends, strict=False):
                line = self._loose_line(pattern, end, rng, used)
                lines.append(line)
            verdict = judge([*lines, ""])
            # Characters with several pronunciations may rhyme differently.
            if verdict.rhyme_group in self.ends:
                return lines, verdict.pattern[-1], verdict.rhyme_group

    def _loose_line(
        self,
        pattern: str,
        end: str,
        rng: random.Random,
        used: set[str],
    ) -> str:
        """Return a line that ends with `end` and fits `pattern`.

        Places whose tones do not count (see `counted_places`) get random tones.

        Args:
            pattern: the tones of the line.
            end: the last character.
            rng: the random number generator.
            used: the characters to avoid if possible; the drawn characters are added.
        """
        counted = counted_places(len(pattern), strict=False)
        tones = []
        for place, tone in enumerate(pattern[:-1]):
            if place not in counted:
                tone = rng.choice(EITHER)
            tones.append(tone)
        return draw_line(self.by_tone, tones, rng, used) + end

    def last_line(
        self,
        lines: list[str],
        pattern: str,
        group: str,
        rhymes: bool,
        rng: random.Random,
    ) -> str:
        """Return a last line with the given tones.

        If possible, its characters, except the last, differ from each other and from all other
        characters in the poem.

        Args:
            lines: the previous lines.
            pattern: the tones of the last line, ending with a level tone.
            group: the rhyme group of the poem.
            rhymes: whether the last line rhymes.
            rng: the random number generator.
        """
        if rhymes:
            ends = self.ends[group]
        else:
            ends = [end for end in self.favorites if group not in level_groups(end)]
        end = rng.choice(ends)
        used = {*"".join(lines), end}
        return draw_line(self.common_by_tone, pattern[:-1], rng, used) + end


def draw_line(
    urns: Mapping[str, Urn],
    tones: Iterable[str],
    rng: random.Random,
    used: set[str],
) -> str:
    """Draw a character for each of `tones` from that tone's urn, and return them as a string.

    Args:
        urns: an urn for each tone.
        tones: the tone of each character.
        rng: the random number generator.
        used: the characters to avoid if possible; the drawn characters are added.
    """
    characters = [urns[tone].draw(rng, used) for tone in tones]
    return "".join(characters)
