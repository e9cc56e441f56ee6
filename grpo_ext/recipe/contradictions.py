"""Options of a recipe that contradict each other, and options that do nothing beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from grpo_ext.objective.policy import ratios_move
from grpo_ext.objective.sampling import FIELD_DEFAULTS, UNTOLD_KEPT_SETS, resolve_sampling
from grpo_ext.objective.schedule import FIELDS, resolve_schedule
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.problems import Problem

Values = Mapping[str, Any]


def weights_match(v: Values, _: int) -> Iterator[Problem]:
    rewards, weights = v["reward_funcs"], v["reward_weights"]
    if weights is None:
        return
    if rewards is None:
        yield Problem("reward_weights needs reward_funcs: say which reward each weight is for.", "reward_weights")
    elif len(rewards) != len(weights):
        yield Problem(f"{len(weights)} reward_weights for {len(rewards)} reward_funcs.", "reward_weights")


def adapters(v: Values, _: int) -> Iterator[Problem]:
    names = v["lora_target_modules"]
    if v["use_peft"] and names and len(names) == 1 and names[0].isidentifier():
        yield Problem(
            f"a single entry of lora_target_modules is a pattern of the whole name, and no layer is called just {names[0]!r}: "
            f"write '.*{names[0]}', or all-linear, or several names.",
            "lora_target_modules",
        )


def merging(v: Values, _: int) -> Iterator[Problem]:
    if v["save_merged"] and not v["use_peft"]:
        yield Problem(
            "save_merged merges an adapter, and this recipe trains none: take it out, or write use_peft: true.",
            "save_merged",
        )
    elif v["save_merged"] and (v["load_in_4bit"] or v["load_in_8bit"]):
        yield Problem(
            "save_merged would add the adapter to other weights than the rounded ones that load_in_4bit or load_in_8bit trains "
            "it beside: take one of the two out. (`grpo-ext merge` does so where that is wanted.)",
            "save_merged",
        )


def precision(v: Values, _: int) -> Iterator[Problem]:
    if v["fp16"] and v["bf16"]:
        yield Problem("fp16 and bf16 are both true: keep one, or write `bf16: false`.", "fp16")
    if v["auto_find_batch_size"]:
        words = "would break groups when it halves the batch: take it out and lower per_device_train_batch_size."
        yield Problem(f"auto_find_batch_size {words}", "auto_find_batch_size")
    if v["load_in_4bit"] and v["load_in_8bit"]:
        yield Problem("load_in_4bit and load_in_8bit are both true: keep one.", "load_in_8bit")


def sampler(v: Values, _: int) -> Iterator[Problem]:
    batching = "use_transformers_continuous_batching"
    if v[batching] and v["use_vllm"]:
        yield Problem(f"use_vllm and {batching} are both true, and only one can sample: keep use_vllm.", batching)
    elif v[batching] and v["bf16"] is not False and not v["fp16"]:
        yield Problem(
            f"{batching} with bf16 turns the trained weights into bfloat16 for good, where small steps round to nothing: write "
            "`bf16: false`, or use_vllm instead.",
            batching,
        )
    room, longest = v["vllm_max_model_length"], v["max_completion_length"]
    if longest is None and not v["use_vllm"]:
        words = "null ends completions after 20 tokens where transformers samples: write a number."
        yield Problem(f"max_completion_length: {words}", "max_completion_length")
    if v["use_vllm"] and room is not None and longest is not None and room <= longest:
        yield Problem(
            f"vllm_max_model_length {room} is prompt and completion together and leaves no prompt beside "
            f"max_completion_length {longest}: raise it, or lower max_completion_length.",
            "vllm_max_model_length",
        )
    low, high = v["vllm_importance_sampling_clip_min"], v["vllm_importance_sampling_clip_max"]
    if low is not None and high is not None and low >= high:
        key = "vllm_importance_sampling_clip_min"
        yield Problem(f"{key} {low:g} must be below vllm_importance_sampling_clip_max {high:g}.", key)


def scorable(v: Values, num_processes: int) -> Iterator[Problem]:
    """Sampling settings that contradict each other, or that completions cannot be scored under."""
    given = v["generation_kwargs"]
    if v["logprob_policy"] != "sampling" or isinstance(given, str):
        return
    fields = {key: v[key] for key in FIELD_DEFAULTS}
    watched = not (v["use_vllm"] or v["use_transformers_continuous_batching"])
    try:
        params = resolve_sampling(fields, given, sampler="vllm" if v["use_vllm"] else "hf", watched=watched)
    except ValueError as error:
        named = [key for key in (*(given or {}), *fields) if str(error).startswith((f"{key}:", f"{key} "))]
        in_kwargs = bool(given) and any(key in given for key in named)
        yield Problem(str(error), "generation_kwargs" if in_kwargs or not named else named[0])
        return
    corrected, batch = v["use_vllm"] and v["vllm_importance_sampling_correction"], batch_of(v, num_processes)
    with_old_pass = ratios_move(batch.gradient_accumulation_steps, batch.passes)  # which notes what was kept
    if params.truncated and not watched and v["beta"] and not (corrected or with_old_pass):
        yield Problem(UNTOLD_KEPT_SETS, "beta")


def temperature(v: Values, num_processes: int) -> Iterator[Problem]:
    """A temperature that moves, and what it needs."""
    batch = batch_of(v, num_processes)
    if v["temperature_schedule"] == "constant" and v["temperature_end"] is None:
        return
    try:
        fields = {key: v[key] for key in FIELDS}
        resolve_schedule(fields, batch.gradient_accumulation_steps, batch.slices, batch.num_iterations)
    except ValueError as error:
        named = str(error).split()[0].removesuffix(":")
        yield Problem(str(error), named if "drop it from" not in str(error) else "generation_kwargs")


def evaluation(v: Values, _: int) -> Iterator[Problem]:
    temperature, best = v["eval_temperature"], "load_best_model_at_end"
    strategy, saving = str(v["eval_strategy"]), str(v["save_strategy"])
    if v[best] and strategy == "no":
        yield Problem(f"{best} needs eval_strategy: steps or epoch.", best)
    elif v[best] and saving not in (strategy, "best"):
        words = f"needs a checkpoint at each evaluation: write save_strategy: {strategy}, or best."
        yield Problem(f"{best} {words}", "save_strategy")
    elif v[best] and strategy == saving == "steps":
        every = v["eval_steps"] or v["logging_steps"]
        if (every < 1) != (v["save_steps"] < 1) or round(v["save_steps"] * 1e6) % round(every * 1e6):
            words = f"needs save_steps {v['save_steps']:g} to be a multiple of eval_steps {every:g}."
            yield Problem(f"{best} {words}", "save_steps")
    if v[best] and temperature is not None and v["metric_for_best_model"] in (None, "loss", "eval_loss"):
        yield Problem(
            "with eval_temperature there is no eval_loss to choose by: write metric_for_best_model: countdown (or another "
            "reward) and greater_is_better: true.",
            best,
        )
    if temperature == 0 and (samples := v["eval_num_samples"]) > 1:
        yield Problem(
            f"eval_num_samples {samples} at eval_temperature 0 is the same completion {samples} times: write "
            "eval_temperature: 0.6, say, or eval_num_samples: 1.",
            "eval_num_samples",
        )
    if temperature is None and v["num_generations_eval"] == 1:
        words = "1 leaves no group; write eval_temperature: 0 instead."
        yield Problem(f"num_generations_eval: {words}", "num_generations_eval")
    if (scheduler := str(v["lr_scheduler_type"])) in ("reduce_lr_on_plateau", "greedy") and strategy == "no":
        words = f"lr_scheduler_type {scheduler} follows the evaluations: set eval_strategy."
        yield Problem(words, "lr_scheduler_type")


def length_of_the_run(v: Values, _: int) -> Iterator[Problem]:
    if v["max_steps"] == 0:
        yield Problem("max_steps: 0 trains nothing: write a number above 0, or -1 for num_train_epochs.", "max_steps")
    if v["dataset_streaming"] and v["max_steps"] < 0:
        yield Problem("a streamed data set has no length: set max_steps.", "dataset_streaming")


def completions_hub(v: Values, _: int) -> Iterator[Problem]:
    key = "log_completions_hub_repo"
    if v[key] and not v["log_completions"]:
        yield Problem(f"{key} uploads nothing without log_completions: true.", key)


# Keys that do nothing unless another has a value: their beginning, when they work, and what would make them work.
IDLE: tuple[tuple[str, Callable[[Values], Any], str], ...] = (
    ("vllm_", lambda v: v["use_vllm"], "use_vllm: true"),
    ("vllm_server_", lambda v: v["vllm_mode"] == "server", "vllm_mode: server"),
    ("lora_", lambda v: v["use_peft"], "use_peft: true"),
    ("sapo_", lambda v: v["loss_type"] == "sapo", "loss_type: sapo"),
    ("vespo_", lambda v: v["loss_type"] == "vespo", "loss_type: vespo"),
    ("ref_model_", lambda v: v["sync_ref_model"], "sync_ref_model: true"),
    ("entropy_coef_", lambda v: v["use_adaptive_entropy"], "use_adaptive_entropy: true"),
    ("kl_estimator", lambda v: v["beta"], "beta above 0"),
    ("eval_", lambda v: str(v["eval_strategy"]) != "no", "eval_strategy: steps"),
    ("eval_top_", lambda v: v["eval_temperature"], "eval_temperature above 0"),
    ("eval_min_p", lambda v: v["eval_temperature"], "eval_temperature above 0"),
    ("eval_num_samples", lambda v: v["eval_temperature"], "eval_temperature above 0"),
    ("save_steps", lambda v: str(v["save_strategy"]) == "steps", "save_strategy: steps"),
    ("num_train_epochs", lambda v: v["max_steps"] < 0, "max_steps left out"),
)
# Keys of those beginnings that are themselves what is asked for, or serve `grpo-ext eval`, too.
NOT_IDLE = ("eval_strategy", "eval_dataset_name")


def idle_keys(v: Values) -> Iterator[Problem]:
    """Notes on keys that a recipe sets and that do nothing beside its others."""
    for key in v:
        for beginning, works, what in IDLE:
            if key.startswith(beginning) and key not in NOT_IDLE and v[key] and not works(v):
                yield Problem(f"{key} does nothing without {what}.", key)
                break
