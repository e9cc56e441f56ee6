"""The options about vLLM that TRL has no name for."""

from __future__ import annotations

from dataclasses import dataclass, field

RANGES: dict[str, tuple[float | None, float | None]] = {
    "vllm_sync_check_steps": (0, None),
    "vllm_sync_check_limit": (1e-9, None),
    "vllm_server_retries": (0, None),
    "vllm_server_request_timeout": (1, None),
}


@dataclass
class EngineOptions:
    """Recipe keys about vLLM; a base of `GRPOExtConfig`.

    Args:
        vllm_sync_check_steps (`int`, defaults to 1): after the first weight sync and every so many syncs, compare the engine's
            log-probs of a few of its completions with the trainer's, which takes one forward pass of them; 0 never.
        vllm_sync_check_limit (`float`, *optional*): mean absolute difference above which the run ends with a checkpoint.
            `None`: 0.001 where the engine computes in float32, else 0.2.
        vllm_server_retries (`int`, defaults to 3): how often a server that died, hung or was started anew is waited for
            (`vllm_server_timeout` seconds each) and given the current weights, for one generation or sync.
        vllm_server_request_timeout (`float`, defaults to 1800): seconds after which a request counts as hung. A generation is
            one request.
        vllm_server_devices (`str`, *optional*): the GPUs of a server that `grpo-ext serve` or `train --serve` starts, such as
            `"2,3"`; `train --serve` trains on the others.
    """

    vllm_sync_check_steps: int = field(
        default=1, metadata={"help": "Compare the engine's log-probs with the trainer's every so many syncs; 0 never."}
    )
    vllm_sync_check_limit: float | None = field(
        default=None, metadata={"help": "Mean difference that ends the run; None: 0.001 in float32, else 0.2."}
    )
    vllm_server_retries: int = field(
        default=3, metadata={"help": "How often a failed server is waited for, for one generation or sync."}
    )
    vllm_server_request_timeout: float = field(
        default=1800.0, metadata={"help": "Seconds after which a request to the server counts as hung."}
    )
    vllm_server_devices: str | None = field(
        default=None, metadata={"help": "GPUs of a server that grpo-ext starts, such as '2,3'."}
    )
