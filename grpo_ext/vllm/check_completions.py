"""Check that a server's completions match the request; wrong ones would corrupt training."""

from collections.abc import Sequence
from typing import Annotated, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

TokenId = Annotated[int, Field(ge=0)]


class Completions(TypedDict):
    """Completions in TRL's format, and the tokens that truncation kept at each position."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[TokenId]]
    # rounding can make a log-prob exceed 0
    logprobs: list[list[list[Annotated[float, Field(lt=1e-3, allow_inf_nan=False)]]]] | None
    logprob_token_ids: list[list[list[int]]] | None
    kept_ids: NotRequired[list[list[list[TokenId]] | None]]


def completions_fault(
    answer: object,
    prompts: list[str] | list[list[int]],
    n: int,
    max_tokens: int,
    num_logprobs: int | None,
    vocabulary: int,
    has_kept: bool = False,
) -> str | None:
    """Describe the first fault in a server's completions, or return `None` if there is none.

    Args:
        answer: the server's response, which should have the format of `Completions`.
        prompts: strings or lists of token ids, at least one.
        n: number of completions per prompt.
        max_tokens: maximum length of a completion.
        num_logprobs: maximum number of log-probs per token; `None` if none were requested.
        vocabulary: number of tokens in the model's vocabulary.
        has_kept: whether the kept tokens were requested.

    Returns:
        The fault as a clause that can follow a colon, such as "they are completions of other
        prompts".
    """
    try:
        completions: Completions = TypeAdapter(Completions).validate_python(answer, strict=True)
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, details['loc']))}: {details['msg'][:100]}"
    rows = completions["completion_ids"]
    if len(rows) != n * len(prompts):
        return f"there are {len(rows)} completions, but {n * len(prompts)} were requested"
    is_tokenized = not isinstance(prompts[0], str)
    if is_tokenized and completions["prompt_ids"] != [list(prompt) for prompt in prompts]:
        return "they are completions of other prompts"
    for i, row in enumerate(rows):
        if len(row) > max_tokens:
            return f"completion {i} has {len(row)} tokens, but at most {max_tokens} were requested"
        if max(row, default=0) >= vocabulary:
            return f"completion {i} has token ids outside the model's vocabulary of {vocabulary}"
    if has_kept:
        fault = kept_fault(rows, completions.get("kept_ids", []), vocabulary)
        if fault:
            return fault
    if num_logprobs is None:
        return None
    logps = completions["logprobs"]
    tokens = completions["logprob_token_ids"]
    if logps is None or tokens is None or not len(logps) == len(tokens) == len(rows):
        return "log-probs are missing, or there is not one list per completion"
    for i, row in enumerate(rows):
        if not are_logps_of(row, logps[i], tokens[i], num_logprobs):
            return f"the log-probs of completion {i} do not match its tokens"
    return None


def are_logps_of(
    row: list[int],
    logps: list[list[float]],
    tokens: list[list[int]],
    num_logprobs: int,
) -> bool:
    """Return whether log-probs match the tokens of a completion.

    At each position, there must be as many log-probs as token ids in `tokens`, at most
    `num_logprobs`, and the sampled token must be one of these tokens.

    Args:
        row: the T token ids of the completion.
        logps: the log-probs at each of the T positions.
        tokens: the ids of the tokens that these log-probs belong to.
        num_logprobs: maximum number of log-probs per position.
    """
    if not len(row) == len(logps) == len(tokens):
        return False
    for token, position_logps, position_tokens in zip(row, logps, tokens, strict=True):
        if token not in position_tokens or len(position_logps) != len(position_tokens):
            return False
        if len(position_tokens) > num_logprobs:
            return False
    return True


def kept_fault(
    rows: list[list[int]], kept_ids: Sequence[list[list[int]] | None], vocabulary: int
) -> str | None:
    """Describe the first fault in the sets of tokens that truncation kept at each position.

    Return `None` if there is none.

    Args:
        rows: the token ids of each completion.
        kept_ids: for each completion, the ids that truncation kept at each position; may be `None`
            for a completion without tokens.
        vocabulary: number of tokens in the model's vocabulary.
    """
    if len(kept_ids) != len(rows):
        return "the tokens that truncation kept are missing"
    for i, (row, positions) in enumerate(zip(rows, kept_ids, strict=True)):
        if positions is None and row:
            return f"the tokens that truncation kept are missing for completion {i}"
        if len(positions or []) != len(row):
            return f"completion {i} does not have one set of kept tokens per token"
        for token, kept in zip(row, positions or [], strict=True):
            if token not in kept:
                return f"completion {i} has a token that its kept tokens do not contain"
            if max(kept) >= vocabulary:
                return f"the kept tokens of completion {i} are outside the model's vocabulary"
    return None
