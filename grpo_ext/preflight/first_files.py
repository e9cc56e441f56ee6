"""Write the recipe that `grpo-ext init` proposes, the files of its reward, and README.md."""

import keyword
import textwrap
import unicodedata
from pathlib import Path
from string import Template
from typing import Any

from grpo_ext.common.files import data_lines, write_atomically
from grpo_ext.common.untrusted import one_line
from grpo_ext.common.yaml_text import yaml_scalar
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.proposal import Proposal, possible_answers
from grpo_ext.preflight.proposed_reward import UNWRITTEN
from grpo_ext.rewards.reward_specs import RESERVED

RUBRIC = (
    "Grade how well the completion does its task: "
    "10 is as good as the reference or better, 0 is useless.\n"
)
MOST_COLUMNS = 20  # maximum number of columns that the starter file of a reward lists
LONGEST_NAME = 60  # maximum number of characters of a column's name in that file
WIDTH = 100  # maximum number of characters of a line in that file


def write_files(
    folder: Path, recipe: str, proposal: Proposal, rows: list[Row], commands: str
) -> None:
    """Write the recipe, the files that its reward needs, and README.md; replace existing files.

    Args:
        folder: the folder to write to, which is created if it does not exist.
        recipe: the text of the recipe.
        proposal: the prompt and the reward.
        rows: the first rows of the data.
        commands: the shell commands to show in README.md.

    Raises:
        OSError: if the folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "recipe.yaml", recipe)
    if proposal.reward == "judge":
        write_atomically(folder / "rubric.md", RUBRIC)
    elif proposal.reward == UNWRITTEN:
        write_atomically(folder / "rewards.py", reward_file(folder, proposal, rows))
    write_atomically(folder / "README.md", f"# {folder.name}\n\n```bash\n{commands}\n```\n")


def reward_file(folder: Path, proposal: Proposal, rows: list[Row]) -> str:
    """Return the Python source of a starter file, for a reward that the user will write.

    Column names are untrusted, so the file contains only those that `can_be_read` accepts.

    Args:
        folder: the folder into which the file will be written.
        proposal: the proposal. The reward reads the first of the proposal's columns that
            `can_be_read` accepts or, if there is none, the first such column that may contain the
            answer.
        rows: the first rows of the data.
    """
    candidates = [*proposal.columns, *possible_answers(proposal, rows)]
    read = [name for name in candidates if can_be_read(name)][:1]
    example = f', {{"{read[0]}": "a text"}}' if read else ""
    text = "\n".join(data_lines("grpo_ext.preflight", "own_rewards.txt")) + "\n"
    return Template(text).substitute(
        file=f"{folder}/rewards.py",
        example=f'Example("a completion", 1.0{example})',
        parameters=", ".join(["completions", *read, "**kwargs"]),
        columns=describe_columns(proposal, rows),
    )


def describe_columns(proposal: Proposal, rows: list[Row]) -> str:
    """Return a docstring paragraph that lists up to `MOST_COLUMNS` columns a reward may read."""
    sentences = [
        "Each parameter after `completions` receives the column of the same name, as a list with "
        "one value per completion; `kwargs` receives all other columns."
    ]
    names = list(filter(can_be_read, dict.fromkeys([*rows[0], *proposal.columns])))
    if names:
        rest = " and others" if len(names) > MOST_COLUMNS else ""
        sentences.append(f"The columns are {', '.join(names[:MOST_COLUMNS])}{rest}.")
    for name, source in proposal.columns.items():
        if name != source and source in rows[0] and can_be_read(source):
            sentences.append(f"`rename_columns` in recipe.yaml makes {name} a copy of {source}.")
    return textwrap.fill(
        " ".join(sentences),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def can_be_read(column: str) -> bool:
    """Return whether the reward in the starter file can receive a column as a parameter.

    The column's name must be an identifier of at most `LONGEST_NAME` characters that is neither a
    keyword nor reserved. It must also be normalized, because Python normalizes parameter names
    (NFKC), so that the parameter would otherwise match no column.
    """
    if len(column) > LONGEST_NAME or not column.isidentifier() or keyword.iskeyword(column):
        return False
    is_normal = unicodedata.normalize("NFKC", column) == column
    return is_normal and column not in (*RESERVED, "prompt", "kwargs")


def in_yaml(recipe: dict[str, Any], proposal: Proposal, lora: bool, measured: bool = False) -> str:
    """Return a recipe as YAML, with comments that explain the values of some keys.

    Args:
        recipe: the keys and values.
        proposal: the prompt and the reward, with the reason for the reward.
        lora: whether an adapter is trained.
        measured: whether `grpo-ext bench` has measured that the batch size fits. If `False`, the
            comment says that it fits by estimate.
    """
    sizes = "fits by estimate; `grpo-ext bench` measures it"
    if measured:
        sizes = "by `grpo-ext bench` on this machine"
    if recipe["learning_rate"] > 1e-4:
        rate = "as in the demos, for a small model"
    elif lora:
        rate = (
            "LoRA takes about ten times the rate of full training (thinkingmachines.ai/blog/lora)"
        )
    else:
        rate = "as in DeepSeekMath (arXiv 2402.03300)"
    reasons = {
        "rename_columns": "a reward may read the column by both names",
        "reward_funcs": proposal.reason,
        "max_steps": "raise it once the curves look right",
        "held_out_share": "rows for evaluation only",
        "per_device_train_batch_size": sizes,
        "learning_rate": rate,
    }
    lines = []
    for key, value in recipe.items():
        line = f"{key}: {yaml_scalar(value)}"
        if key in reasons:
            line += f"  # {one_line(reasons[key])}"
        lines.append(line)
    return "\n".join(lines) + "\n"
