"""Requests to vLLM's route `/inference/v1/generate`, which completes one list of token ids.

Unlike `/v1/completions`, this route accepts prompts with images (TRL also uses it for those), and
can return the tokens that truncated sampling kept.
"""

import uuid
from collections.abc import Mapping
from typing import Any

# a `RequestOutputKind` of vLLM; with other kinds, a prompt with several completions loses some
FINAL_ONLY = 2
TOKEN = "token_id:"  # precedes the id of a token in the responses of vLLM up to 0.31
Answer = dict[str, Any]  # completions in TRL's format, with `kept_ids` if there are any


def sampling_params(n: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the keyword arguments of TRL's `generate` to vLLM's sampling parameters.

    Args:
        n: number of completions.
        sampling: the keyword arguments; entries of `generation_kwargs` override the others.
    """
    params = {"n": n, "max_tokens": 16, "logprobs": 0, **sampling}
    generation_kwargs = params.pop("generation_kwargs", None) or {}
    regex = params.pop("structured_outputs_regex", None)
    if regex is not None:
        params["structured_outputs"] = {"regex": regex}
    return {**params, **generation_kwargs, "output_kind": FINAL_ONLY}


def request_of(
    model: str | None,
    prompt: list[int],
    features: dict[str, Any] | None,
    params: dict[str, Any],
) -> dict[str, Any]:
    """Return the body of a request for completions of one prompt.

    Args:
        model: the name of the model or adapter on the server.
        prompt: the token ids of the prompt.
        features: image data of the prompt, as returned by vLLM; `None` if there are no images.
        params: vLLM's sampling parameters.
    """
    return {
        "request_id": f"grpo-ext-{uuid.uuid4().hex}",
        "model": model,
        "token_ids": prompt,
        "features": features,
        "sampling_params": params,
    }


def answer_of(prompts: list[list[int]], responses: list[dict[str, Any]]) -> Answer:
    """Combine the responses, one for each prompt, into completions in TRL's format.

    If the responses contain kept tokens, the key `kept_ids` is added.
    """
    choices = []
    for response in responses:
        choices += response["choices"]
    logprobs = None
    token_ids = None
    if choices and choices[0]["logprobs"] is not None:
        logprobs = []
        token_ids = []
        for choice in choices:
            content = choice["logprobs"]["content"]
            logprobs.append([[entry["logprob"]] for entry in content])
            token_ids.append([[token_of(entry)] for entry in content])
    answer = {
        "prompt_ids": [list(prompt) for prompt in prompts],  # the route does not repeat them
        "completion_ids": [choice["token_ids"] for choice in choices],
        "logprobs": logprobs,
        "logprob_token_ids": token_ids,
    }
    kept_ids = [choice.get("sampling_mask") for choice in choices]
    if any(kept is not None for kept in kept_ids):
        answer["kept_ids"] = kept_ids
    return answer


def token_of(entry: dict[str, Any]) -> int:
    """Return the token id of a log-prob entry, whose format depends on the version of vLLM."""
    if "token_id" in entry:
        return entry["token_id"]
    return int(entry["token"].removeprefix(TOKEN))
