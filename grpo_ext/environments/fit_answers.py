"""Truncate long answers of an environment, so that the model's next turn has room."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_ext.environments.turn_tokens import Message, TurnTokens

CUT_OFF = " (cut off)"  # the end of a text that has been cut off


@dataclass(frozen=True)
class FittedAnswer:
    """An environment's answer as the model sees it, cut off if it was too long."""

    messages: list[Message]
    ids: list[int]  #: the tokens of the answer, with those of the template around it
    is_cut: bool  #: whether the answer has been cut off


def answer_limit(left: int, turn_tokens: int | None) -> int:
    """Return how many tokens an environment's answer may have, so that the next turn has room.

    Half of the tokens that are left are reserved for the next turn, or `turn_tokens` + 1 if that is
    less. The additional token prevents a turn of full length from ending the episode.

    Args:
        left: the number of tokens that the episode has left.
        turn_tokens: maximum number of tokens in a turn; `None` allows as many as are left.
    """
    half = left // 2
    if turn_tokens is None:
        return half
    return max(half, left - turn_tokens - 1)


def fitted_answer(
    messages: Sequence[Message], tokens: TurnTokens, ended: bool, limit: int
) -> FittedAnswer:
    """Return an answer, cut off if it has more than `limit` tokens.

    A message that is cut off ends with `CUT_OFF`. The messages share the limit evenly, and longer
    messages get the tokens that short ones do not need. Because no message is cut to less than
    `CUT_OFF`, the result may still have more than `limit` tokens. If the template allows only one
    call per turn, the results are joined into one message.

    Args:
        messages: the answer as chat messages.
        tokens: converts answers to tokens.
        ended: whether the model's turn has its end token.
        limit: maximum number of tokens, including those of the template around the answer.

    Raises:
        ValueError: if the template fails on the answer, or changes it.
    """
    answer = list(messages)
    try:
        ids = tokens.answer(answer, ended)
    except ValueError:  # some templates allow only one call per turn
        content = "\n".join(message["content"] for message in answer)
        answer = [{**answer[0], "content": content}]
        ids = tokens.answer(answer, ended)
    if len(ids) <= limit:
        return FittedAnswer(answer, ids, is_cut=False)
    counts = [len(tokens.content_tokens(message)) for message in answer]
    of_template = len(ids) - sum(counts)
    shares = even_shares(counts, limit - of_template)
    cut = []
    for message, share in zip(answer, shares, strict=True):
        cut.append({**message, "content": cut_text(message, tokens, share)})
    return FittedAnswer(cut, tokens.answer(cut, ended), is_cut=cut != answer)


def even_shares(counts: Sequence[int], total: int) -> list[int]:
    """Divide a number of tokens among messages as evenly as possible, and return the shares.

    No message gets more tokens than it has; the rest is divided among the longer messages.

    Args:
        counts: the number of tokens in each message.
        total: the number of tokens to divide; a negative number counts as 0.
    """
    shares = [0] * len(counts)
    left = max(total, 0)
    from_shortest = sorted(range(len(counts)), key=lambda i: counts[i])
    for place, i in enumerate(from_shortest):
        shares[i] = min(counts[i], left // (len(counts) - place))
        left -= shares[i]
    return shares


def cut_text(message: Message, tokens: TurnTokens, limit: int) -> str:
    """Return a message's text; if it has more than `limit` tokens, cut it off and add `CUT_OFF`.

    If `CUT_OFF` alone exceeds the limit, return the shorter of `CUT_OFF` and the whole text.

    Args:
        message: the message to cut; its text may already end with `CUT_OFF`.
        tokens: converts text to tokens.
        limit: maximum number of tokens in the text as the chat template renders it.
    """
    text = message["content"]

    def count(length: int) -> int:
        return len(tokens.content_tokens({**message, "content": text[:length] + CUT_OFF}))

    if len(tokens.content_tokens(message)) <= max(limit, count(0)):
        return text
    ids = tokens.plain_tokens(text)
    # only the beginning is searched, since the tokenizer may be slow on long texts
    beginning = tokens.tokenizer.decode(
        ids[: max(limit, 0)],
        clean_up_tokenization_spaces=False,
    )
    longest = min(len(beginning), len(text.removesuffix(CUT_OFF)))
    length = bisect_right(range(longest + 1), limit, key=count) - 1
    return text[: max(length, 0)] + CUT_OFF
