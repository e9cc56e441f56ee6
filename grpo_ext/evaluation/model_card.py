"""Complete the model card that TRL writes at each checkpoint and at the end of a run."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from textwrap import indent
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text
from grpo_ext.evaluation.completions import Row
from grpo_ext.evaluation.table import CURVES, Gain, cell, table
from grpo_ext.recipe.difference import as_yaml

CARD = "README.md"
NO_NAME = "[None](https://huggingface.co/None)"  # TRL's name of a model from a folder
QUESTION = re.compile(r'^question = ".*"$', re.MULTILINE)  # in TRL's quick start
MESSAGES = '[{"role": "user", "content": question}]'
MOST_OF_PROMPT = 4000  # characters


def add_to_card(
    folder: Path,
    rewards: list[Row],
    gains: list[Gain],
    recipe: Mapping[str, Any],
    sentences: Sequence[str] = (),
    prompt: object = None,
) -> None:
    """Add rewards, gains, curves and the recipe to the model card that TRL has written.

    Args:
        folder: the folder of the run, with the card and the curves.
        rewards: the name, weight and options of each reward.
        gains: the rows of the table of results, from `gained`.
        recipe: the values that differ from their defaults.
        sentences: sentences about the run; each becomes a paragraph above the table.
        prompt: a prompt of the dataset, for the quick start; `None` keeps TRL's question.

    Raises:
        OSError: if there is no card, or it cannot be read.
    """
    reward_rows = []
    for reward in rewards:
        options = json.dumps(reward.get("options", {}), default=str)
        cells = [
            reward["name"],
            f"{reward['weight']:g}",
            options.strip("{}"),
        ]
        reward_rows.append(cells)
    gain_rows = [list(astuple(gain)) for gain in gains]
    paragraphs = []
    for sentence in sentences:
        paragraphs += [cell(sentence), ""]
    curves = f"![Curves of the run]({CURVES})" if (folder / CURVES).exists() else ""
    lines = [
        "### Rewards",
        "",
        *table(["reward", "weight", "options"], reward_rows),
        "",
        "### Result",
        "",
        *paragraphs,
        *table(["", "first", "last", ""], gain_rows),
        "",
        curves,
        "",
        "### Recipe",
        "",
        "Trained with grpo_ext. These values differ from the defaults:",
        "",
        indent(as_yaml(recipe), "    "),
    ]
    section = "\n".join(lines)
    card = read_text(folder / CARD, within=folder)
    card = card.replace(NO_NAME, model_name(recipe))
    card = card.replace('model="None"', f"model={json.dumps(str(folder))}")  # not on the hub
    card = re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", card)  # from TRL's links that are not there
    card = with_prompt(card, prompt)
    before, heading, after = card.partition("### Framework versions")
    write_atomically(folder / CARD, f"{before}{section}\n{heading}{after}")


def model_name(recipe: Mapping[str, Any]) -> str:
    """Return the last part of the path or hub id that the recipe sets as its model.

    It is escaped for Markdown. Without a model, return "a model without a name".
    """
    name = recipe.get("model_name_or_path")
    if not isinstance(name, str) or not name:
        return "a model without a name"
    return cell(Path(name).resolve().name)


def with_prompt(card: str, prompt: object) -> str:
    """Return a card with a prompt in the quick start, in place of TRL's question.

    The card is returned unchanged if the prompt is neither a string nor a list of messages with
    texts, if its `repr` is longer than `MOST_OF_PROMPT`, or if the card has no such question.
    """
    if isinstance(prompt, list):
        messages = []
        for message in prompt:
            if not isinstance(message, dict) or not isinstance(message.get("content"), str):
                return card
            messages.append({"role": message.get("role"), "content": message["content"]})
        prompt = messages
    elif not isinstance(prompt, str):
        return card
    code = repr(prompt)  # on one line, so that no text of it can end the block of code
    if len(code) > MOST_OF_PROMPT or QUESTION.search(card) is None:
        return card
    card = QUESTION.sub(lambda _: f"prompt = {code}", card, count=1)
    return card.replace(MESSAGES, "prompt", 1)
