"""Rules for the run as a whole: its model, length, starting point and sampling engine.

Rules about a single group of options are in the module of those options.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Idle, Refusal, Rule, refuses
from grpo_ext.recipe.typed_values import Values


@refuses(
    "model_name_or_path", "model_name_or_path is missing. Set it to a model folder or a hub id."
)
def no_model(v: Values) -> bool:
    return not v.model_name_or_path


@refuses(
    "dataset_name",
    "dataset_name is missing. Set it to a jsonl, json, csv or parquet file, or to a hub id.",
)
def supervised_without_rows(v: Values) -> bool:
    return not v.dataset_name


@refuses(
    "eval_strategy",
    "eval_strategy: supervised training does not evaluate. Remove eval_strategy, and compare "
    "models with `grpo-ext eval`.",
)
def supervised_with_evaluation(v: Values) -> bool:
    return v.eval_strategy != "no"


@refuses(
    "lora_target_modules",
    "lora_target_modules: peft matches a single entry against the full names of layers, not their "
    "endings. Set it to '.*{lora_target_modules[0]}', or to all-linear for all linear layers.",
)
def one_plain_name_of_a_layer(v: Values) -> bool:
    """Return whether a LoRA recipe has a plain name as the only entry of `lora_target_modules`.

    peft treats a single entry as a regular expression that must match the whole layer name.
    """
    modules = v.lora_target_modules
    return v.use_peft and modules is not None and len(modules) == 1 and modules[0].isidentifier()


@refuses("fp16", "fp16 and bf16 are both true. Remove fp16, or set `bf16: false`.")
def two_half_precisions(v: Values) -> object:
    return v.fp16 and v.bf16


@refuses("load_in_8bit", "load_in_4bit and load_in_8bit are both true. Remove one of them.")
def two_quantizations(v: Values) -> bool:
    return v.load_in_4bit and v.load_in_8bit


@refuses(
    "auto_find_batch_size",
    "auto_find_batch_size reduces the batch size when memory runs out, so that batches may no "
    "longer consist of whole groups. Remove auto_find_batch_size, and lower "
    "per_device_train_batch_size.",
)
def batch_size_that_shrinks(v: Values) -> bool:
    return v.auto_find_batch_size


@refuses(
    "optim_args",
    "optim_args: {optim_args!r} is not a list of names with values. Use the form "
    "`optim_args: eps=1e-6, momentum=0.9`.",
)
def optimizer_arguments_without_values(v: Values) -> bool:
    """Return whether any part of `optim_args` does not contain exactly one equals sign.

    transformers splits the string into parts at the commas, then splits each part at the equals
    sign into a name and a value, and fails on any other part.
    """
    parts = v.optim_args.split(",") if v.optim_args else []
    return any(part.count("=") != 1 for part in parts)


@refuses(
    "muon",
    "`muon: true` does not support an adapter, which has no embeddings or norms for AdamW to "
    "train. Remove muon, or set `use_peft: false`.",
)
def muon_with_an_adapter(v: Values) -> object:
    return v.muon and v.use_peft


@refuses(
    "muon",
    "`muon: true` needs whole weight matrices, but with {accelerate_config} (ZeRO or FSDP) the "
    "optimizer gets only parts of them. Remove muon, or set accelerate_config to one without "
    "sharding.",
)
def muon_with_sharding(v: Values) -> object:
    return v.muon and sharding(v)


@refuses(
    "max_steps",
    "`max_steps: 0` trains nothing. Set a number above 0, or -1 to use num_train_epochs.",
)
def no_steps(v: Values) -> bool:
    return v.max_steps == 0


@refuses("dataset_streaming", "dataset_streaming: a stream has no known length. Set max_steps.")
def stream_without_an_end(v: Values) -> bool:
    return v.dataset_streaming and v.max_steps < 0


@refuses(
    "resume",
    "`resume: {resume}` and `resume_from_checkpoint: {resume_from_checkpoint}` "
    "both say where the run starts. Remove one of them.",
)
def two_places_to_begin(v: Values) -> object:
    return v.resume_from_checkpoint and v.resume != "auto"


@refuses(
    "resume",
    "resume must be auto, never, or the folder of a checkpoint; there is no folder {resume!r}.",
)
def resume_from_no_folder(v: Values) -> bool:
    if v.resume_from_checkpoint or v.resume in ("auto", "never"):
        return False
    return not Path(v.resume).expanduser().is_dir()


@refuses(
    "use_transformers_continuous_batching",
    "use_vllm and use_transformers_continuous_batching are both true, but only one can sample. "
    "Remove one of them.",
)
def vllm_and_continuous_batching(v: Values) -> bool:
    return v.use_transformers_continuous_batching and v.use_vllm


@refuses(
    "use_transformers_continuous_batching",
    "use_transformers_continuous_batching with `bf16: true`, which is the default, permanently "
    "rounds the trained weights to bfloat16. Set `bf16: false`.",
)
def weights_rounded_by_continuous_batching(v: Values) -> bool:
    rounds = v.bf16 is not False and not v.fp16
    return v.use_transformers_continuous_batching and not v.use_vllm and rounds


@refuses(
    "use_transformers_continuous_batching",
    "use_transformers_continuous_batching with `fp16: true` permanently rounds the trained weights "
    "to float16. Set `fp16: false` and `bf16: false`.",
)
def weights_rounded_to_float16(v: Values) -> bool:
    return v.use_transformers_continuous_batching and not v.use_vllm and v.fp16


@refuses(
    "max_completion_length",
    "`max_completion_length: null` makes transformers end completions after 20 tokens. Set "
    "max_completion_length to a number.",
)
def transformers_without_a_length(v: Values) -> bool:
    return v.max_completion_length is None and not v.use_vllm


@refuses(
    "max_completion_length",
    "`max_completion_length: null` ends completions in evaluations after 20 tokens, because "
    "evaluations with eval_temperature use transformers, not vLLM. Set max_completion_length to a "
    "number.",
)
def evaluation_without_a_length(v: Values) -> bool:
    evaluates = v.eval_temperature is not None and str(v.eval_strategy) != "no"
    return v.max_completion_length is None and v.use_vllm and evaluates


def options_that_trl_loses(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each gradient checkpointing option that does not work with TRL.

    TRL turns gradient checkpointing off for each generation, and then on again for all layers
    alike. It passes the options `every_n_layers` and `offload` to torch, which rejects them, or,
    with `use_reentrant: false`, to the layers, which ignore them.
    """
    for key in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        options = v[key] if v.has(key) else None
        if isinstance(options, str):
            with suppress(ValueError):
                options = json.loads(options)
        if not isinstance(options, dict):
            continue
        for option in sorted(options.keys() & {"every_n_layers", "offload"}):
            yield Problem(
                f"{key}: {option} does not work with TRL, which turns checkpointing off and on "
                f"again for each generation. Remove {option}.",
                key,
            )


SUPERVISED_RULES: tuple[Refusal, ...] = (
    no_model,
    supervised_without_rows,
    supervised_with_evaluation,
    optimizer_arguments_without_values,
    muon_with_an_adapter,
    muon_with_sharding,
)
RULES: tuple[Rule, ...] = (
    no_model,
    one_plain_name_of_a_layer,
    two_half_precisions,
    two_quantizations,
    batch_size_that_shrinks,
    optimizer_arguments_without_values,
    muon_with_an_adapter,
    muon_with_sharding,
    no_steps,
    stream_without_an_end,
    two_places_to_begin,
    resume_from_no_folder,
    vllm_and_continuous_batching,
    weights_rounded_by_continuous_batching,
    weights_rounded_to_float16,
    transformers_without_a_length,
    evaluation_without_a_length,
    options_that_trl_loses,
)
NOTES: tuple[Rule, ...] = (
    Idle(("lora_*",), lambda v: v.use_peft, "`use_peft: true`"),
    Idle(
        ("pad_to_multiple_of",),  # TRL sets "auto" itself
        lambda v: v.pad_to_multiple_of == "auto" or v.loss_normalization != "step",
        "`loss_normalization: micro_batch`, because `step` removes padding",
    ),
    Idle(("save_steps",), lambda v: v.save_strategy == "steps", "`save_strategy: steps`"),
    Idle(("num_train_epochs",), lambda v: v.max_steps < 0, "`max_steps: -1`"),
)
