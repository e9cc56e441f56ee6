"""Completions of truncated sampling as vLLM returns them, with its own types and serialiser.

The model is a table: the logits after a token are a row of it. Sampling, log-probs and kept tokens
are thus the same on every machine. `python -m tests.support.vllm_answers` records the responses of
the vLLM that is installed; `recorded` reads those of all versions.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens

FOLDER = Path(__file__).parents[1] / "serving" / "recorded"
VOCABULARY = 48
PARAMS = SamplingParams(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02, order="vllm")
PROMPTS = [[1, 2, 3], [40, 5], [7]]
N = 2  # completions of each prompt
LENGTH = 9


@dataclass(frozen=True)
class Drawn:
    """A completion of a prompt."""

    prompt: list[int]
    ids: list[int]
    logps: list[float]
    kept_ids: list[list[int]]


def hidden_states() -> Tensor:
    """The last hidden state after each token: (V, 3), and of no rounding that matters."""
    tokens = torch.arange(VOCABULARY, dtype=torch.float32)
    return torch.stack([tokens / 7 % 1, tokens / 11 % 1, tokens / 13 % 1], dim=1)


def head() -> Tensor:
    """The weight of the head: (V, 3)."""
    tokens = torch.arange(VOCABULARY, dtype=torch.float32)
    return 5 * torch.stack([tokens / 5 % 1, tokens / 17 % 1, tokens / 3 % 1], dim=1)


def draw() -> list[Drawn]:
    """Draw `N` completions of each prompt."""
    table = hidden_states() @ head().t() / PARAMS.temperature  # (V, V)
    kept = kept_tokens(table, PARAMS)
    logps = table.masked_fill(~kept, -torch.inf).log_softmax(-1)
    random_state = random.Random(0)
    drawn = []
    for prompt in PROMPTS:
        for _ in range(N):
            ids: list[int] = []
            for _ in range(LENGTH - len(drawn)):
                last = [*prompt, *ids][-1]
                [token] = random_state.choices(range(VOCABULARY), logps[last].exp().tolist())
                ids.append(token)
            contexts = [prompt[-1], *ids[:-1]]
            drawn.append(
                Drawn(
                    prompt,
                    ids,
                    logps[contexts, ids].tolist(),
                    [kept[last].nonzero().flatten().tolist() for last in contexts],
                )
            )
    return drawn


def outputs_of(drawn: list[Drawn]) -> list[Any]:
    """vLLM's `RequestOutput` of each prompt, as the engine makes it."""
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput, SamplingMask

    outputs = []
    for i, prompt in enumerate(PROMPTS):
        completions = []
        for index, row in enumerate(drawn[i * N : (i + 1) * N]):
            completions.append(
                CompletionOutput(
                    index=index,
                    text="",
                    token_ids=row.ids,
                    cumulative_logprob=sum(row.logps),
                    logprobs=[
                        {token: Logprob(logprob=logp, rank=1, decoded_token=None)}
                        for token, logp in zip(row.ids, row.logps, strict=True)
                    ],
                    finish_reason="length",
                    sampling_mask=SamplingMask(row.kept_ids),
                )
            )
        outputs.append(RequestOutput(str(i), None, prompt, None, completions, True))
    return outputs


def route_body(output: Any) -> bytes:
    """The body of the response of `/inference/v1/generate`, by vLLM's own code."""
    from starlette.responses import JSONResponse
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
    from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens

    from grpo_ext.samplers.vllm_token_route import request_of, sampling_params

    params = sampling_params(N, {"top_k": PARAMS.top_k, "logprobs": 0})
    request = GenerateRequest(**request_of("m", output.prompt_token_ids, None, params))

    async def results() -> Any:
        yield output

    serving = object.__new__(ServingTokens)
    serving.enable_prompt_tokens_details = False
    serving.enable_log_outputs = False
    serving.has_tokenizer = False
    noted = type("Metadata", (), {"final_usage_info": None})()
    response = asyncio.run(
        serving.serve_tokens_full_generator(request, results(), "generate-0", "m", noted)
    )
    return JSONResponse(content=response.model_dump()).body


def recorded() -> dict[str, list[dict[str, Any]]]:
    """The recorded responses to the requests of all prompts, by the version of vLLM."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))}


def record() -> None:
    """Write the responses of the installed vLLM."""
    import vllm

    bodies = [json.loads(route_body(output)) for output in outputs_of(draw())]
    for body in bodies:
        body["created"] = 0
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{vllm.__version__.partition('+')[0]}.json"
    path.write_text(json.dumps(bodies) + "\n")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    record()
