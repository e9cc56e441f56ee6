"""Options for vLLM in addition to TRL's, and the rules for all vLLM options."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from grpo_ext.common.untrusted import check_server_url
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.overlap_options import separate
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Idle, Rule, refuses
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import CountOrZero, Positive

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # adapter ranks that vLLM 0.31 to 0.33 support
OR_MERGED = ", or set `vllm_sync_adapter: merged`."  # ends messages of `samplers.vllm_adapter`
# keys that do not work with `vllm_sync_adapter: adapter`, each with the error message
NOT_WITH_ADAPTER = {
    "vllm_enable_sleep_mode": (
        "vllm_enable_sleep_mode: a sleeping engine loses its base model, which the trainer does "
        "not send again. Remove vllm_enable_sleep_mode, or set `vllm_sync_adapter: merged`."
    ),
    "lora_modules_to_save": (
        "lora_modules_to_save: an adapter for vLLM cannot contain whole layers. Remove "
        "lora_modules_to_save, or set `vllm_sync_adapter: merged`."
    ),
    "lora_target_parameters": (
        "lora_target_parameters: vLLM accepts adapters for layers, not for parameters. Set "
        "lora_target_modules instead, or `vllm_sync_adapter: merged`."
    ),
    "load_in_4bit": (
        "load_in_4bit: vLLM may quantize the base model differently from the trainer. Remove "
        "load_in_4bit, or set `vllm_sync_adapter: merged`."
    ),
    "load_in_8bit": (
        "load_in_8bit: vLLM cannot quantize the base model to 8 bits while loading it. Remove "
        "load_in_8bit, or set `vllm_sync_adapter: merged`."
    ),
}


@dataclass
class EngineOptions:
    """Recipe keys for vLLM; a base of `GRPOExtConfig`.

    Args:
        vllm_sync_adapter (`str`, defaults to `"merged"`): what the trainer sends to vLLM when it
            trains a LoRA adapter. `"merged"`: all weights, with the adapter merged into them, as in
            TRL. `"adapter"`: only the adapter, which is megabytes instead of gigabytes; the engine
            applies it to the base model that the engine was started with. A server then needs
            access to `output_dir`, from which it loads the adapter.
        vllm_sync_check_steps (`int`, defaults to 1): the number N of weight syncs between checks.
            After the first sync, and then after every N syncs, the engine's log-probs are compared
            with the trainer's on a few completions, which costs a forward pass over them. 0
            disables the checks.
        vllm_sync_check_limit (`float`, *optional*): the mean absolute difference of log-probs above
            which the check of `vllm_sync_check_steps` saves a checkpoint and ends the run. If
            `None`, it is 0.001 if the engine and the trainer both compute in float32, otherwise
            0.2.
        vllm_server_retries (`int`, defaults to 3): the maximum number of times that a generation or
            sync is retried if the server died, hung or was restarted. Before each retry, the
            trainer waits up to `vllm_server_timeout` seconds for the server, and sends it the
            current weights.
        vllm_server_request_timeout (`float`, defaults to 1800): the number of seconds after which a
            request to the server, or to a sampler process, counts as hung. A request is for one
            generation, turn or round.
        vllm_server_host (`str`, defaults to `"127.0.0.1"`): the address on which the server listens
            and to which trainers connect. Any other address requires an API key, in the environment
            variable `VLLM_API_KEY` of both the server and the trainers.
        vllm_server_devices (`str`, *optional*): the GPUs of a server started by `grpo-ext serve` or
            `train --serve`, such as `"2,3"`; `train --serve` trains on the other GPUs.
    """

    vllm_sync_adapter: Literal["merged", "adapter"] = "merged"
    vllm_sync_check_steps: CountOrZero = 1
    vllm_sync_check_limit: Positive | None = None
    vllm_server_retries: CountOrZero = 3
    vllm_server_request_timeout: Annotated[float, Field(ge=1)] = 1800.0
    vllm_server_host: str = "127.0.0.1"
    vllm_server_devices: str | None = None


def vllm_rank(r: int) -> int | None:
    """Return the smallest adapter rank of vLLM (one of `LORA_RANKS`) that is at least `r`.

    Return `None` if `r` is larger than all of them.
    """
    return next((rank for rank in LORA_RANKS if rank >= r), None)


def counts_that_the_trainer_sets(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `generation_kwargs` sets `n` or `logprobs`, which the trainer sets itself.

    The rule applies only if vLLM samples.
    """
    if not v.use_vllm:
        return
    for key in sorted({"n", "logprobs"} & set(v.generation_kwargs or ())):
        yield Problem(
            "generation_kwargs: the trainer itself sets how many completions and log-probs vLLM "
            f"returns. Remove {key} from generation_kwargs.",
            "generation_kwargs",
        )


@refuses(
    "vllm_max_model_length",
    "vllm_max_model_length ({vllm_max_model_length}) is the limit for prompt and completion, "
    "and `max_completion_length: {max_completion_length}` leaves no room for a prompt. Raise "
    "vllm_max_model_length, or lower max_completion_length.",
)
def context_without_a_prompt(v: Values) -> object:
    context = v.use_vllm and v.vllm_max_model_length
    return context and (v.max_completion_length or 0) >= context


def server_address_with_a_password(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if the server URL is invalid, or the URL or the host contains credentials."""
    if v.vllm_server_base_url:
        try:
            check_server_url(v.vllm_server_base_url, path="")
        except ValueError as error:
            yield Problem(f"vllm_server_base_url: {error}.", "vllm_server_base_url")
    if "@" in v.vllm_server_host:
        yield Problem(
            "vllm_server_host must not contain a user name or password, because recipes, logs and "
            "reports show the host. Remove everything up to and including the @.",
            "vllm_server_host",
        )


def adapter_that_vllm_cannot_take(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if vLLM cannot use the adapter that `vllm_sync_adapter: adapter` sends."""
    if v.vllm_sync_adapter != "adapter" or not v.use_vllm:
        return
    for key, message in NOT_WITH_ADAPTER.items():
        if v[key]:
            yield Problem(message, key)
    if not v.use_peft:
        yield Problem(
            "`vllm_sync_adapter: adapter` needs an adapter, but this recipe trains none. Set "
            "`use_peft: true`, or `vllm_sync_adapter: merged`.",
            "vllm_sync_adapter",
        )
        return
    if vllm_rank(v.lora_r) is None:
        yield Problem(
            f"lora_r: vLLM supports at most rank {LORA_RANKS[-1]}, not {v.lora_r}. Lower lora_r, "
            "or set `vllm_sync_adapter: merged`.",
            "lora_r",
        )
    for name in v.lora_target_modules or ():
        if "lm_head" in name or "embed" in name:
            yield Problem(
                "lora_target_modules: `vllm_sync_adapter: adapter` does not support adapters on "
                f"embeddings or the output head. Remove {name}, or set "
                "`vllm_sync_adapter: merged`.",
                "lora_target_modules",
            )
    if sharding(v) >= 3:
        yield Problem(
            "`vllm_sync_adapter: adapter` does not support ZeRO-3 or FSDP, because they shard the "
            "adapter. Set `accelerate_config: ddp` or `accelerate_config: zero2`, or "
            "`vllm_sync_adapter: merged`.",
            "accelerate_config",
        )


RULES: tuple[Rule, ...] = (
    counts_that_the_trainer_sets,
    context_without_a_prompt,
    adapter_that_vllm_cannot_take,
    server_address_with_a_password,
)
NOTES: tuple[Rule, ...] = (
    Idle(("vllm_importance_sampling_*",), separate, "`use_vllm: true` or `sampler: process`"),
    Idle(("vllm_*",), lambda v: v.use_vllm or v.sampler, "`use_vllm: true`"),
    Idle(
        ("vllm_server_*",),
        lambda v: v.vllm_mode == "server" or v.sampler,
        "`vllm_mode: server`",
    ),
)
