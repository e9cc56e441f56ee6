"""Forecast a recipe's run: its steps and rows, prompt lengths, model size and memory."""

from collections.abc import Callable, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from trl import ModelConfig, get_peft_config

from grpo_ext.common.adapters import check_model_folder
from grpo_ext.common.files import data_yaml
from grpo_ext.common.hub import find_model
from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.preflight.checkpointing import Checkpointing, configured
from grpo_ext.preflight.first_rows import first_rows, quiet
from grpo_ext.preflight.tokenized_prompts import load_tokenizer, local_options
from grpo_ext.preflight.try_environment import read_prompts
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.memory import ModelSize, checkpoint_bytes, eval_batch_size, memory_estimate
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values, processes
from grpo_ext.recipe.run_plan import Plan, make_plan
from grpo_ext.run.from_recipe import eval_rows, train_rows
from grpo_ext.vllm.settings import TextModel

PATIENCE = 5.0  # time limit, in seconds, for loading a model's config from the hub
MEASURED_PROMPTS = 64  # maximum number of first prompts that are tokenized


@dataclass(frozen=True)
class Forecast:
    """The steps and costs of a run.

    A field is `None` if it depends on a model config, tokenizer or rows that cannot be read here.
    """

    plan: Plan  # prompts, steps, checkpoints
    size: ModelSize | None
    memory: dict[str, int] | None  # bytes on each device, by part
    checkpoint: int | None  # bytes of one checkpoint
    prompt_tokens: float | None  # mean length of the first prompts, in tokens
    checkpointing: Checkpointing | None  # also `None` if the recipe sets gradient checkpointing
    eval_batch_size: int | None  # completions per process; `None` if the run chooses it

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast as a dict that can be written as JSON."""
        figures = asdict(self.plan)
        for name in ("prompts", "completions", "slices", "passes", "completions_per_step"):
            figures["batch"][name] = getattr(self.plan.batch, name)
        for name in ("prompts", "completions", "token_budget", "evaluations"):
            figures[name] = getattr(self.plan, name)
        model = None
        if self.size is not None:
            model = {"parameters": self.size.parameters, "trainable": self.size.trainable}
        return {
            **figures,
            "prompt_tokens": self.prompt_tokens,
            "per_device_eval_batch_size": self.eval_batch_size,
            "checkpoint_bytes": self.checkpoint,
            "gradient_checkpointing": self.checkpointing and self.checkpointing.on,
            "memory_bytes": self.memory,
            "model": model,
        }


def make_forecast(
    recipe: Recipe,
    num_processes: int | None = None,
    rows: int | None = None,
    device_memory: int | None = None,
) -> Forecast:
    """Return the forecast for the run of a recipe that has been checked.

    Args:
        recipe: the recipe of the run.
        num_processes: the number of training processes; `None` uses the number in the recipe's
            accelerate config.
        rows: the number of training rows. If `None`, they are counted unless they are streamed.
        device_memory: the memory of one device, in bytes; `None` uses that of this machine.

    Raises:
        FileNotFoundError: if the training data or the held-out data does not exist.
        ValueError: if the training rows do not fill a generation or cannot be counted here, or if
            the model has no layer that its adapter names.
    """
    v = recipe.flat
    if rows is None and not v["dataset_streaming"]:
        rows = count(recipe, train_rows)
    held_out = None
    if str(v["eval_strategy"]) != "no":
        with suppress(ValueError):  # the rows cannot be read here
            held_out = count(recipe, eval_rows)
    plan = make_plan(v, num_processes or processes(v), rows, held_out)
    tokens = prompt_tokens(recipe)
    size = None
    with suppress(TooLate), deadline(PATIENCE), quiet("huggingface_hub"):
        size = model_size(v, recipe.model)
    memory = None
    checkpoint = None
    choice = None
    eval_batch: int | None = v.per_device_eval_batch_size
    if size is not None:
        shards = sharding(v)
        prompt = None if tokens is None or v.dataset_streaming else round(tokens)
        recomputes = configured(v)
        if recomputes is None:
            choice = Checkpointing.choose(
                size,
                v,
                plan.batch,
                sharding=shards,
                prompt=prompt,
                memory=device_memory,
            )
            recomputes = choice.on
        values = v.replaced(gradient_checkpointing=recomputes)
        memory = memory_estimate(size, values, plan.batch, shards, round(tokens or 0))
        checkpoint = checkpoint_bytes(size, v, deepspeed=1 <= shards <= 3)
        eval_batch = eval_batch_size(v, plan.batch, size)
    return Forecast(plan, size, memory, checkpoint, tokens, choice, eval_batch)


def count(recipe: Recipe, rows_of: Callable[..., Sized]) -> int:
    """Return how many training or held-out rows the run will use.

    As a side effect, the progress bars of `datasets` are disabled in this process.

    Args:
        recipe: the recipe of the run.
        rows_of: `train_rows` or `eval_rows`.

    Raises:
        FileNotFoundError: if there is no such data.
        ValueError: if the rows cannot be read here.
    """
    from datasets import disable_progress_bars

    disable_progress_bars()
    try:
        with quiet("huggingface_hub"):
            return len(rows_of(recipe, prompts=False))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(
            f"the rows cannot be counted here ({error}). For `grpo-ext plan`, pass their number "
            "with --rows."
        ) from error


def prompt_tokens(recipe: Recipe) -> float | None:
    """Return the mean length of the first prompts, in tokens.

    Return `None` if the tokenizer or the rows cannot be read here, or if the prompts cannot be
    built.
    """
    unused = Findings()
    tokenizer = load_tokenizer(recipe.flat, unused)
    if tokenizer is None:
        return None
    rows = first_rows(recipe, MEASURED_PROMPTS, unused)
    if not rows:
        return None
    prompts, _ = read_prompts(recipe, rows, tokenizer, unused)
    return prompts["tokens"]["mean"] if prompts else None


def model_size(v: Values, model_config: ModelConfig) -> ModelSize | None:
    """Return the size of a recipe's model, without loading its weights.

    If the recipe trains an adapter, the adapter's parameters are the trainable ones, and are not
    counted in `parameters`. Return `None` if the model's config can be neither loaded nor found in
    `shapes.yaml`, if the model is not a language model, or if its folder could block loading or
    fill the memory.

    Args:
        v: the values of the recipe.
        model_config: TRL's model config, which describes the adapter.

    Raises:
        ValueError: if the model has no layer that the adapter names.
    """
    name = v["model_name_or_path"]
    trust = bool(v["trust_remote_code"])
    try:
        check_model_folder(Path(name).expanduser())
        config = known_config(name)
        if config is None:
            find_model(name)
            config = AutoConfig.from_pretrained(
                name, revision=v["model_revision"], trust_remote_code=trust
            )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        model.tie_weights()
    except Exception:  # offline, no such model, or not a language model
        return None
    parameters = model.num_parameters()
    adapter = get_peft_config(model_config)
    if adapter is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            model = get_peft_model(model, adapter)
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return size_of(config, parameters, trainable)


def size_of(config: PretrainedConfig, parameters: int, trainable: int) -> ModelSize:
    """Return the size of a model.

    Args:
        config: the config of the model, which sets its dimensions.
        parameters: the number of parameters.
        trainable: the number of trained parameters.
    """
    text = TextModel.of(config)
    return ModelSize(
        parameters,
        trainable,
        dtype=text.dtype,
        hidden_size=config.get_text_config().hidden_size,
        num_hidden_layers=text.num_hidden_layers,
        kv_width=text.kv_heads * text.head_size,
    )


def known_config(name: str) -> PretrainedConfig | None:
    """Return the config of a model that is listed in `shapes.yaml`, or `None` for any other model.

    A suffix `-Instruct` in `name` is ignored.
    """
    shape = data_yaml("grpo_ext.preflight", "shapes.yaml").get(name.removesuffix("-Instruct"))
    if shape is None:
        return None
    return AutoConfig.for_model(**shape, dtype="bfloat16")


def local_config(v: Values) -> PretrainedConfig | None:
    """Return the config of a recipe's model, without contacting the hub.

    Return `None` if the config is neither in `shapes.yaml` nor on this machine, or if the model
    type is unknown to transformers.
    """
    name = v["model_name_or_path"]
    try:
        return known_config(name) or AutoConfig.from_pretrained(name, **local_options(v))
    except Exception:  # not on this machine, or unknown to this version of transformers
        return None


def layer_sizes(v: Values) -> ModelSize | None:
    """Return the dimensions of a recipe's model, with both parameter counts set to 0.

    Return `None` if the model's config cannot be read without contacting the hub, or does not
    describe attention layers.
    """
    config = local_config(v)
    if config is None:
        return None
    try:
        return size_of(config, 0, 0)
    except Exception:  # the config has other fields, because the layers are of another kind
        return None
