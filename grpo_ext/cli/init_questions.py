"""Decide on the prompt and the reward for `grpo-ext init`, from flags or by asking the user."""

from __future__ import annotations

import argparse
import io
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import one_line, printable

if TYPE_CHECKING:
    from grpo_ext.preflight.first_rows import Row
    from grpo_ext.preflight.proposal import Proposal

NEWLINE = "\n"
ESCAPED_NEWLINE = "\\n"  # how a newline is shown, and typed in answers


class ClosedInput(ValueError):
    """Raised if a question cannot be asked, because standard input is closed or at its end."""

    def __init__(self) -> None:
        super().__init__(
            "Standard input is closed or at its end, so init cannot ask questions. Pass --yes to "
            "accept what it proposes, or answer with --prompt and --reward."
        )


def check_input(args: argparse.Namespace) -> None:
    """Check that standard input is open if questions will be asked.

    The check does not wait for input that another program has yet to write.

    Raises:
        ClosedInput: if questions will be asked, but standard input is closed or at its end.
    """
    if args.yes or (args.prompt is not None and args.reward is not None):
        return
    if sys.stdin is None or sys.stdin.closed:
        raise ClosedInput
    try:
        ready, _, _ = select.select([sys.stdin], [], [], 0)
    except (OSError, ValueError):  # not a file of the system; on Windows, not a socket
        return
    stream = sys.stdin.buffer
    is_terminal = sys.stdin.isatty()
    if ready and not is_terminal and isinstance(stream, io.BufferedReader) and not stream.peek(1):
        raise ClosedInput


def decide(rows: list[Row], args: argparse.Namespace) -> Proposal:
    """Propose a prompt and a reward for rows, according to the flags and the user's answers.

    Args:
        rows: the first rows of the data.
        args: the flags `prompt`, `answer` and `reward`, each `None` if not given, and `yes`; if
            `yes` is set, no question is asked.

    Raises:
        ValueError: if there are no rows, no prompt can be proposed, a flag does not fit the rows,
            or a question cannot be asked.
    """
    from grpo_ext.preflight.proposal import with_reward
    from grpo_ext.preflight.propose import propose

    if not rows:
        raise ValueError("the data has no rows.")
    prompt = args.prompt
    if prompt is not None:
        prompt = prompt.replace(ESCAPED_NEWLINE, NEWLINE)
        check_prompt(prompt, rows)
    proposal = propose(rows, prompt, args.answer)
    reward = args.reward
    if not args.yes:
        proposal = ask_about_columns(proposal, rows, prompt, args)
        reward = reward or ask_about_reward(proposal, rows)
    if reward not in (None, proposal.reward):
        proposal = with_reward(proposal, reward, columns_of_reward(reward, proposal, rows))
    return proposal


def ask_about_columns(
    proposal: Proposal, rows: list[Row], prompt: str | None, args: argparse.Namespace
) -> Proposal:
    """Ask about the prompt and, if no column has a usual name for answers, about the answer column.

    Args:
        proposal: the proposal so far.
        rows: the first rows of the data.
        prompt: the prompt from the flags; if `None`, the user is asked.
        args: the flags; if `answer` or `reward` is given, the user is not asked about the answer
            column.

    Returns:
        The proposal, updated with the user's answers.
    """
    from grpo_ext.preflight.proposal import gold_column, possible_answers
    from grpo_ext.preflight.propose import propose

    if prompt is None:
        for text in proposal.questions:
            print(one_line(text))
        entered = ask(
            "Enter a column, or a template with columns in braces, as the prompt, or press Enter "
            f"for [{printable(proposal.prompt.replace(NEWLINE, ESCAPED_NEWLINE))}]",
            default=proposal.prompt,
            check=lambda text: check_prompt(text, rows),
        )
        if entered != proposal.prompt:
            prompt = entered
            proposal = propose(rows, prompt, args.answer)
    candidates = possible_answers(proposal, rows)
    is_known = args.answer is not None or gold_column(proposal, rows) is not None
    if is_known or args.reward is not None or not candidates:
        return proposal
    answer = ask(
        f"Which column has the right answers: {' or '.join(map(one_line, candidates))}? Enter its "
        "name, or press Enter if none of them does",
        default="",
        check=lambda text: check_answer(text, candidates),
    )
    return propose(rows, prompt, answer) if answer else proposal


def ask_about_reward(proposal: Proposal, rows: list[Row]) -> str:
    """Ask for the reward, and return its name or `file.py:function`."""
    return ask(
        f"Enter a reward, or file.py:function for your own, or press Enter for [{proposal.reward}] "
        f"({one_line(proposal.reason)})",
        default=proposal.reward,
        check=lambda text: columns_of_reward(text, proposal, rows),
    )


def ask(question: str, default: str, check: Callable[[str], object]) -> str:
    """Ask at the terminal until the answer is valid, and return it.

    Args:
        question: the question to print.
        default: the answer if the user enters an empty line.
        check: called with an answer; raises `ValueError` if it is invalid, with a message to print.

    Raises:
        ClosedInput: if standard input is at its end.
    """
    while True:
        try:
            answer = input(f"{question}: ").strip().replace(ESCAPED_NEWLINE, NEWLINE)
        except EOFError:
            raise ClosedInput from None
        if not answer or answer == default:
            return default
        try:
            check(answer)
        except ValueError as error:
            print(printable(error))
        else:
            return answer


def check_prompt(prompt: str, rows: list[Row]) -> None:
    """Check that a prompt is a column, or a template with columns in braces.

    Raises:
        ValueError: if the prompt is neither, or uses a column whose name a template cannot contain.
    """
    from grpo_ext.preflight.proposal import columns_of
    from grpo_ext.tasks.templates import is_field_name

    columns = list(filter(is_field_name, rows[0]))
    try:
        used = columns_of(prompt)
    except ValueError:
        used = []
    if not used or not set(used).issubset(columns):
        raise ValueError(
            f"The prompt {prompt!r} is neither a usable column nor a template with such columns in "
            f"braces.{did_you_mean(prompt, columns)} Usable columns (their names contain none of "
            f"`.:![{{}}`): {', '.join(columns) or 'none'}."
        )


def check_answer(column: str, candidates: list[str]) -> None:
    """Raise `ValueError` if a column is not one of the candidates for the answer column."""
    if column not in candidates:
        raise ValueError(
            f"The answer column must be one of {', '.join(candidates)}; got {column!r}."
        )


def columns_of_reward(reward: str, proposal: Proposal, rows: list[Row]) -> dict[str, str]:
    """Return the columns that a reward reads, each mapped to the column of the data to use for it.

    Args:
        reward: a name, or a function as `file.py:function` or `package.module:function`.
        proposal: the proposal, whose prompt is already chosen.
        rows: the first rows of the data.

    Raises:
        ValueError: if init does not offer a reward of this name, the rows lack a column that it
            reads, or there is no such function.
    """
    from grpo_ext.preflight.first_recipe import REWARD_PROMPTS
    from grpo_ext.preflight.proposal import columns_for, columns_for_function
    from grpo_ext.preflight.proposed_reward import UNWRITTEN
    from grpo_ext.rewards.registry import lookup

    if ":" in reward:
        return columns_for_function(reward, proposal, rows)
    named = [name for name in REWARD_PROMPTS if name != "judge"]  # --judge names that one
    if reward not in named:
        hint = did_you_mean(reward, named)
        if reward == "judge":
            hint = (
                " For a judge, run init with --judge URL and without --yes, and enter "
                f"{UNWRITTEN} as the reward."
            )
        raise ValueError(
            f"init does not offer a reward named {reward!r}.{hint} It offers {', '.join(named)}, "
            "and accepts your own function as my_rewards.py:function."
        )
    columns = columns_for(reward, proposal, rows)
    if columns is None:
        raise ValueError(
            f"The rows lack a column that the reward {reward!r} reads "
            f"({', '.join(lookup(reward).columns)}). If that column is `solution`, pass the column "
            "of the right answers with --answer; otherwise, add the column or choose another "
            "reward."
        )
    return columns
