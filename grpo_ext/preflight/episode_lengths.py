"""Check how many turns of an episode fit into `max_completion_length`."""

from collections.abc import Sequence

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import answers_texts
from grpo_ext.environments.fit_answers import CUT_OFF, answer_limit
from grpo_ext.environments.turn_tokens import Message
from grpo_ext.recipe.problems import Findings

KEY = "max_completion_length"


def check_episode_lengths(
    episode: Episode, room: int, answers: Sequence[int], findings: Findings
) -> None:
    """Check that a second turn fits into an episode, and record how many turns fit.

    The first of these findings that applies is added:

    - a problem if no second turn fits; only a note if `answers` is empty, because the model may
      never call a tool;
    - a note if no second turn fits after a first turn of `turn_tokens` tokens;
    - a note if answers are cut off.

    Nothing is checked or recorded if episodes have a single turn, or if there are no answers and no
    tools.

    The figure "episodes" is a dict, in which lengths are in tokens:

    - `room`: the argument `room`.
    - `answers`: the lengths of the shortest and longest answer; `None` if `answers` is empty.
    - `shortest_answer`: the length of the shortest possible answer.
    - `turns`: how many turns of `turn_tokens` tokens fit between answers of mean length, or of
      length `shortest_answer` if `answers` is empty; at least 1, and at most the maximum number of
      turns of an episode. If the recipe does not set `turn_tokens`, the turns may be as short as
      one token.
    - `turn_tokens`: the recipe's value or, if it is not set, the mean length that is left for each
      of these turns.

    With several environments, each has such a dict in the figure "episodes_by_environment".

    Args:
        episode: any episode of the environment.
        room: the maximum number of tokens of all turns and answers together.
        answers: the number of tokens of each answer to a made-up turn.
        findings: receives the problem or note, and the figure.
    """
    turns = episode.rules.turns
    turn_tokens = episode.rules.turn_tokens
    if turns == 1 or not (answers or episode.tokens.tools):
        return
    shortest = min([*shortest_answers(episode), *answers])
    usual = round(sum(answers) / len(answers)) if answers else shortest
    num_turns = turns_that_fit(room, turn_tokens or 1, usual, turns)
    label = episode.rules.label
    place = f"environment {label}: " if label else ""
    figures = findings.figures
    if label:
        figures = figures.setdefault("episodes_by_environment", {})
    figures[label or "episodes"] = {
        "room": room,
        "answers": [min(answers), max(answers)] if answers else None,
        "shortest_answer": shortest,
        "turns": num_turns,
        "turn_tokens": turn_tokens or (room - (num_turns - 1) * usual) // num_turns,
    }
    if room < 1 + shortest + 1 and not answers:
        findings.note(
            f"{place}max_completion_length ({room}) leaves no room for a tool result between two "
            f"turns, because the shortest result has {shortest} tokens with the chat template "
            "around it. Raise max_completion_length, which limits all turns and results together, "
            f"to at least {shortest + 2}.",
            KEY,
        )
    elif room < 1 + shortest + 1:
        findings.problem(
            f"{place}max_completion_length ({room}) leaves no room for a second turn of an "
            f"episode, because the shortest answer has {shortest} tokens with the chat template "
            "around it. Raise max_completion_length, which limits all turns and answers together, "
            f"to at least {shortest + 2}.",
            KEY,
        )
    elif turn_tokens is not None and room < turn_tokens + shortest + 1:
        findings.note(
            f"{place}max_completion_length ({room}) leaves no room for a second turn of an "
            f"episode after a first turn of {turn_tokens} tokens (turn_tokens), because the "
            f"shortest answer has {shortest} tokens with the chat template around it. Raise "
            "max_completion_length, or lower turn_tokens.",
            KEY,
        )
    elif max(answers, default=0) > answer_limit(room - 1, turn_tokens):
        findings.note(
            f"{place}answers of the environment have up to {max(answers)} tokens, and the longest "
            f"are cut off, because max_completion_length ({room}) limits all turns and answers "
            "together. Raise max_completion_length, or shorten the answers.",
            KEY,
        )


def shortest_answers(episode: Episode) -> list[int]:
    """Return the lengths, in tokens, of the shortest possible answers of an environment.

    The answers are one result of each tool and, if the environment answers turns or has no tools,
    one message from the environment. Each is cut down to `CUT_OFF`.
    """
    tools = episode.tokens.tools
    messages: list[Message] = []
    for tool in tools:
        messages.append({"role": "tool", "name": tool.__name__, "content": CUT_OFF})
    if answers_texts(episode.environment) or not tools:
        messages.append({"role": "user", "content": CUT_OFF})
    return [len(episode.tokens.answer([message], ended=True)) for message in messages]


def turns_that_fit(room: int, turn: int, answer: int, most: int) -> int:
    """Return how many turns, at least 1, fit into an episode with an answer after all but the last.

    Args:
        room: the maximum number of tokens of all turns and answers together.
        turn: the number of tokens of a turn.
        answer: the number of tokens of an answer.
        most: the maximum number of turns.
    """
    return max(1, min(most, (room + answer) // (turn + answer)))
