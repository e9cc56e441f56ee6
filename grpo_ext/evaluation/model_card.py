"""Extend the model card that TRL writes at each checkpoint and at the end of a run."""

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
NO_NAME = "[None](https://huggingface.co/None)"  # TRL's name for a model from a folder
QUESTION = re.compile(r'^question = ".*"$', re.MULTILINE)  # in TRL's quick start
MESSAGES = '[{"role": "user", "content": question}]'
MOST_OF_PROMPT = 4000  # maximum number of characters


def add_to_card(
    folder: Path,
    rewards: list[Row],
    gains: list[Gain],
    recipe: Mapping[str, Any],
    sentences: Sequence[str] = (),
    prompt: object = None,
) -> None:
    """Add rewards, gains, curves and the recipe to the model card that TRL has written.

    Where TRL wrote `None` because it did not know the name of a model, insert the name of the base
    model or the path of the run's folder.

    Args:
        folder: the folder of the run, with the card and, if they were drawn, the curves.
        rewards: the `name`, `weight` and, optionally, `options` of each reward.
        gains: the rows of the results table, from `gained`.
        recipe: the recipe values that differ from their defaults.
        sentences: sentences about the run; each becomes a paragraph above the results table.
        prompt: a prompt from the dataset, for the quick start; `None` keeps TRL's question.

    Raises:
        OSError: if there is no card, or it cannot be read or written.
        UnicodeDecodeError: if the card is not UTF-8.
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
    card = re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", card)  # blank lines left by missing links
    card = with_prompt(card, prompt)
    before, heading, after = card.partition("### Framework versions")
    write_atomically(folder / CARD, f"{before}{section}\n{heading}{after}")


def model_name(recipe: Mapping[str, Any]) -> str:
    """Return the name of the recipe's model, without its parent folders or hub owner.

    The name is escaped for Markdown. If the recipe sets no model, return "a model without a name".
    """
    name = recipe.get("model_name_or_path")
    if not isinstance(name, str) or not name:
        return "a model without a name"
    return cell(Path(name).resolve().name)


def with_prompt(card: str, prompt: object) -> str:
    """Replace TRL's question in the quick start of a model card with `prompt`; return the card.

    The card is returned unchanged if `prompt` is neither a string nor a list of messages with
    string contents, if its `repr` is longer than `MOST_OF_PROMPT`, or if the card contains no such
    question.
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
    code = repr(prompt)  # on one line, so that nothing in it can end the code block
    if len(code) > MOST_OF_PROMPT or QUESTION.search(card) is None:
        return card
    card = QUESTION.sub(lambda _: f"prompt = {code}", card, count=1)
    return card.replace(MESSAGES, "prompt", 1)
