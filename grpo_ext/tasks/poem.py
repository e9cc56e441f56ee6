"""Poem: write the last line of a Chinese poem so that it fits the poem's tonal pattern and rhyme.

Rows have the column `lines` and may have `title` and `author`. `lines` is either the whole poem (4
or 8 lines) or all lines but the last (3 or 7), with an optional column `last_line`. The package
ships famous quatrains from the Tang to the Qing dynasty, all in the public domain. Each rhymes
according to 平水韵 and has at most one tonal fault according to `rewards.poem`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from operator import add
from typing import ClassVar

from grpo_ext.common.files import data_lines, data_yaml
from grpo_ext.common.hashes import in_share
from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.forms import COUNTS, LENGTHS
from grpo_ext.rewards.poem.text import han, verse_lines
from grpo_ext.tasks.base import Messages, Row, Task, chat, check_template, held_out

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["poem"]
QUATRAINS: list[Row] = list(map(json.loads, data_lines("grpo_ext.tasks", "quatrains.jsonl")))
OPTIONAL = ("form", "length", "title", "author", "pattern", "rhyme_group")


@dataclass
class Poem(Task):
    """Task that asks for the last line of a poem in regulated verse.

    `user_prompt` must contain {lines}, and may contain {form} (such as 七言绝句), {length} (五 or
    七), {title}, {author}, {pattern} and {rhyme_group}. The last two describe only the given lines:
    {pattern} is the tonal pattern that fits the lines best, and {rhyme_group} is their rhyme group
    in 平水韵, such as 十五删, or 无 if there is none.

    Raises:
        ValueError: if `test_fraction` is not between 0 and 1, or `user_prompt` lacks {lines}, has
            an unknown field, or is not a valid format string.
    """

    name: ClassVar[str] = "poem"
    default_rewards: ClassVar[dict[str, float]] = {"poem_format": 1.0, "poem_yun": 1.0}

    # whether to ask for thoughts in <think> and the line in <answer>, or only for the line
    chain_of_thought: bool = True
    # share of the shipped poems that are held out, by a hash of their given lines
    test_fraction: float = 0.2
    # `None` uses the default prompt for `chain_of_thought`; an empty string omits the message
    system_prompt: str | None = None
    user_prompt: str = PROMPTS["user"]

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise ValueError(
                "test_fraction must be greater than 0 and less than 1 (for example, 0.2); got "
                f"{self.test_fraction}."
            )
        check_template(self.user_prompt, required={"lines"}, allowed={"lines", *OPTIONAL})

    def generate(self, split: str) -> Iterator[Row]:
        """Return an iterator over the shipped quatrains of `split` ("train" or "test").

        Each row has `title`, `author`, `form` (七绝 or 五绝) and `lines`, with all four lines.
        """
        test = held_out(split)
        return (dict(row) for row in QUATRAINS if self.is_held_out(row) == test)

    def is_held_out(self, row: Row) -> bool:
        """Return whether a poem, from any source, belongs to the test split."""
        return in_share(self.held_out_key(row), self.test_fraction)

    def held_out_key(self, row: Row) -> str:
        """Return the given lines as one string."""
        return "".join(self.columns(row)["lines"])

    def keep(self, row: Row) -> bool:
        """Return whether a poem has the right size.

        The poem must have 4 or 8 lines, counting the last line even if it is unknown. The given
        lines must all have 5 or all have 7 characters.
        """
        lines = self.columns(row)["lines"]
        if len(lines) + 1 not in COUNTS:
            return False
        lengths = set(map(len, lines))
        return len(lengths) == 1 and lengths <= LENGTHS.keys()

    def columns(self, row: Row) -> Row:
        """Return the given `lines` without punctuation, and `last_line` ("" if it is unknown)."""
        lines = verse_lines(row["lines"])
        if len(lines) in COUNTS:
            return {"lines": lines[:-1], "last_line": lines[-1]}
        last_line = row.get("last_line") or ""
        return {"lines": lines, "last_line": han(last_line)}

    def prompt(self, row: Row) -> Messages:
        lines = self.columns(row)["lines"]
        verdict = judge([*lines, ""])
        length = LENGTHS[len(lines[0])]
        punctuated = map(add, lines, cycle("，。"))
        user = self.user_prompt.format(
            lines="\n".join(punctuated),
            form=length + COUNTS[len(lines) + 1],
            length=length[0],
            title=row.get("title") or "无题",
            author=row.get("author") or "佚名",
            pattern="\n".join(verdict.pattern[:-1]),
            rhyme_group=verdict.rhyme_group or "无",
        )
        system = self.system_prompt
        if system is None:
            system = PROMPTS["think_first" if self.chain_of_thought else "line_alone"]
        return chat(system, user)
