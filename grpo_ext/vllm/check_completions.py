"""Check a server's completions against its request: wrong ones would give a wrong signal."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict


class Found(TypedDict):
    """Completions in TRL's form."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[Annotated[int, Field(ge=0)]]]
    # rounding can exceed 0
    logprobs: list[list[list[Annotated[float, Field(lt=1e-3, allow_inf_nan=False)]]]] | None
    logprob_token_ids: list[list[list[int]]] | None


def completions_fault(
    found: Any, prompts: list, n: int, longest: int, num_logprobs: int | None, vocabulary: int
) -> str | None:
    """Return what is wrong with completions; `None` if nothing is.

    `found` is the server's answer, in the form of `Found`, for P `prompts` (texts or lists of
    tokens): `n` completions of each with at most `longest` tokens below `vocabulary`, and at most
    `num_logprobs` log-probs of a token (`None`: not requested).
    """
    try:
        rows = TypeAdapter(Found).validate_python(found, strict=True)["completion_ids"]
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg'][:100]}"
    if len(rows) != n * len(prompts):
        return f"{len(rows)} for {len(prompts)} prompts x {n}"
    if not isinstance(prompts[0], str) and found["prompt_ids"] != [
        list(prompt) for prompt in prompts
    ]:
        return "they belong to other prompts"
    for i, row in enumerate(rows):
        if len(row) > longest:
            return f"number {i} has {len(row)} tokens, and at most {longest} were requested"
        if max(row, default=0) >= vocabulary:
            return f"number {i} has tokens that are not among the model's {vocabulary}"
    if num_logprobs is None:
        return None
    logps = found["logprobs"]
    names = found["logprob_token_ids"]
    if logps is None or names is None or not len(logps) == len(names) == len(rows):
        return "their log-probs are missing"
    for i, (row, values, tokens) in enumerate(zip(rows, logps, names, strict=True)):
        counts = [len(position) for position in tokens]
        there = len(row) == len(tokens) and all(
            token in position for token, position in zip(row, tokens, strict=True)
        )
        if (
            not there
            or max(counts, default=0) > num_logprobs
            or counts != [len(position) for position in values]
        ):
            return f"number {i} has log-probs of other tokens"
    return None
