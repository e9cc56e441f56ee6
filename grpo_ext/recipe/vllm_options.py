"""The options about vLLM that TRL does not have."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from grpo_ext.recipe.values import CountOrZero, Positive


@dataclass
class EngineOptions:
    """Recipe keys about vLLM; a base of `GRPOExtConfig`.

    Args:
        vllm_sync_check_steps (`int`, defaults to 1): after the first weight sync and then every so many syncs, compare the
            engine's log-probs of a few completions with the trainer's, at the cost of a forward pass of them; 0 never.
        vllm_sync_check_limit (`float`, *optional*): mean absolute difference above which the run ends with a checkpoint.
            `None`: 0.001 where the engine computes in float32, else 0.2.
        vllm_server_retries (`int`, defaults to 3): how often one generation or sync waits, `vllm_server_timeout` seconds each
            time, for a server that died, hung or was restarted, and sends it the current weights.
        vllm_server_request_timeout (`float`, defaults to 1800): seconds after which a request counts as hung, also one to a
            sampler process. A generation is one request.
        vllm_server_host (`str`, defaults to `"127.0.0.1"`): address at which the server listens and trainers reach it. Any
            other address needs a key, in the environment variable `VLLM_API_KEY` of both.
        vllm_server_devices (`str`, *optional*): GPUs of a server that `grpo-ext serve` or `train --serve` starts, such as
            `"2,3"`; `train --serve` trains on the others.
    """

    vllm_sync_check_steps: CountOrZero = 1
    vllm_sync_check_limit: Positive | None = None
    vllm_server_retries: CountOrZero = 3
    vllm_server_request_timeout: Annotated[float, Field(ge=1)] = 1800.0
    vllm_server_host: str = "127.0.0.1"
    vllm_server_devices: str | None = None
