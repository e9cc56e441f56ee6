"""Check how a chat template renders earlier turns, and reject templates that change them.

Episodes need a template that renders an earlier turn as the model sampled it, with the turn's
thoughts and end token. Otherwise, the model would see different tokens in training than when it is
served.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from grpo_ext.environments.bare_calls import QUESTION, THOUGHT, Message, Written

TURN = "a turn"
OPENS_THOUGHT = "<think>"
CLOSES_THOUGHT = "</think>"
NAME_OF_OPTION = re.compile(r"\b\w*(?:think|reason)\w*\b")
NO_THOUGHTS = "enable_thinking"


class EarlierTurnChanged(ValueError):
    """Raised if a chat template does not render an earlier turn as it was sampled.

    Args:
        sampled: the turn as it was sampled. If the template also changes the turn's header, the
            header is included from the first difference on.
        written: the text that the template renders in place of `sampled`.
        option: a template option with which the template keeps earlier turns, such as
            `preserve_thinking: true`; empty if there is none.
    """

    def __init__(self, sampled: str, written: str, option: str = ""):
        self.sampled = sampled
        self.written = written
        remedy = (
            "Use a model whose template keeps earlier turns, or put a chat_template.jinja that "
            "does so next to the tokenizer"
        )
        if option:
            remedy = f"Set `chat_template_kwargs: {{{option}}}`, with which the template keeps them"
        super().__init__(
            "This chat template changes earlier turns, so the model would not see the tokens that "
            f"it sampled: the template writes {written!r} in place of {sampled!r}. {remedy}."
        )


def after_turn(
    written: Written, end: str, calls: Sequence[Message], answer: Sequence[Message]
) -> str:
    """Return the rendered text after a turn's end token: an answer and the next turn's header.

    Args:
        written: renders messages with the chat template.
        end: the text of the token that ends a turn.
        calls: the calls of the turn.
        answer: the messages that follow the turn.

    Raises:
        EarlierTurnChanged: if the template changes the turn or the text before it, or does not
            write `end` after the turn.
    """
    prompt = written([QUESTION], opens=True)
    sampled = prompt + sampled_turn(prompt)
    text = ""
    for turn in turns_with_thought(prompt):
        if calls:
            turn["tool_calls"] = list(calls)
        until_end, _, _ = written([QUESTION, turn]).rpartition(end)
        text = written([QUESTION, turn, *answer], opens=True)
        if until_end and text.startswith(sampled) and text.startswith(until_end + end):
            return text.removeprefix(until_end + end)
    start = len(prompt)  # some templates change the header of the turn, too
    while not text.startswith(prompt[:start]):
        start -= 1
    in_place, _, _ = text[start:].partition(end)
    raise EarlierTurnChanged(sampled[start:], in_place)


def turns_with_thought(prompt: str) -> Iterator[Message]:
    """Yield two forms of a turn with a thought: with the thought in its own field, and in the text.

    Each form is a message. If `prompt`, the rendered prompt before the turn, ends with a closed
    thought, yield only one message, which has no thought.
    """
    if prompt.rstrip().endswith(CLOSES_THOUGHT):
        yield {"role": "assistant", "content": TURN}
        return
    yield {"role": "assistant", "content": TURN, "reasoning_content": THOUGHT}
    yield {"role": "assistant", "content": sampled_turn("")}


def sampled_turn(prompt: str) -> str:
    """Return the text of a turn with a thought, as a model would sample it after `prompt`.

    If `prompt`, the rendered prompt, ends with `<think>`, the turn begins with the thought itself.
    If `prompt` ends with `</think>`, the turn has no thought.
    """
    rest = f"{THOUGHT}\n{CLOSES_THOUGHT}\n\n{TURN}"
    if prompt.rstrip().endswith(CLOSES_THOUGHT):
        return TURN
    if prompt.rstrip().endswith(OPENS_THOUGHT):
        return rest
    return f"{OPENS_THOUGHT}\n{rest}"


def options_of_thoughts(template: str) -> list[tuple[str, bool]]:
    """Return names in a template that may be options for thoughts, as (name, value) pairs.

    These are all names that contain `think` or `reason`, each with `True` and with `False`; some
    may not be options. `enable_thinking`, which can switch thoughts off, comes last.
    """
    names = {*NAME_OF_OPTION.findall(template)}
    last_is_off = sorted(names, key=lambda name: (name == NO_THOUGHTS, name))
    return [(name, value) for name in last_is_off for value in (True, False)]


def end_of_turn(
    written: Written,
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
    answers_texts: bool,
) -> int:
    """Return the id of the token that a template writes at the end of a turn without calls.

    Args:
        written: renders messages with the chat template.
        tokenizer: the model's tokenizer.
        ends: the ids of the tokens that end a turn.
        answers_texts: whether the environment answers turns without calls.

    Raises:
        ValueError: if the template does not end a turn with a token in `ends`; if it writes
            something before that token; or if it ends earlier turns with another token and
            `answers_texts` is `True`.
    """
    turn = {"role": "assistant", "content": TURN}
    end = _first_token(written([QUESTION, turn, QUESTION]), tokenizer)
    if end is not None and end in ends:
        return end
    last_end = _first_token(written([QUESTION, turn]), tokenizer)
    name = "" if end is None else str(tokenizer.decode([end]))
    if last_end is not None and last_end in ends:
        if not answers_texts:
            return last_end
        raise ValueError(
            "The chat template changes earlier turns: it ends the last turn with "
            f"{str(tokenizer.decode([last_end]))!r} and writes {name!r} in its place when an "
            "answer follows, so the model would not see the tokens that it sampled. Use an "
            "environment that answers with tools alone, without `step`, or another model."
        )
    _, _, after = written([QUESTION, turn, QUESTION]).partition(TURN)
    until_answer, _, _ = after.partition(QUESTION["content"])
    for token in sorted(ends):
        text = str(tokenizer.decode([token]))
        between, found, _ = until_answer.partition(text)
        if found:
            raise ValueError(
                f"The chat template writes {between!r} between a turn and its end token {text!r}, "
                "so the model would not see the tokens that it sampled. Put a chat_template.jinja "
                "whose turns end with the end token next to the tokenizer, or use another model."
            )
    if end is None or end not in tokenizer.added_tokens_decoder:
        raise ValueError(
            "The chat template does not end a turn with a special token, so the model cannot be "
            "trained on several turns. Use a model whose chat template does."
        )
    raise ValueError(
        f"The chat template ends a turn with {name!r}, which is not one of the model's end tokens. "
        f"In a local copy of the model, set eos_token in tokenizer_config.json to {name!r}."
    )


def _first_token(conversation: str, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the first token after the turn `TURN`; `None` if nothing follows it."""
    _, _, after = conversation.partition(TURN)
    ids = list(tokenizer(after, add_special_tokens=False)["input_ids"])
    return ids[0] if ids else None
