"""The plan of a recipe with its figures: rows, tokens of prompts, size of the model, memory."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig, get_peft_config

from grpo_ext.common.adapters import check_model_folder
from grpo_ext.common.deadline import TooLate, deadline
from grpo_ext.common.files import data_yaml
from grpo_ext.preflight.first_rows import first_rows, quiet
from grpo_ext.preflight.tokenized_prompts import load_tokenizer
from grpo_ext.preflight.try_environment import read_prompts
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.memory import ModelSize, checkpoint_bytes, memory_estimate
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values, processes
from grpo_ext.recipe.run_plan import Plan, make_plan
from grpo_ext.run.from_recipe import eval_rows, train_rows
from grpo_ext.vllm.settings import TextModel

PATIENCE = 5.0  # seconds that a model's config may take to come from the hub
MEASURED = 64  # first prompts that are tokenized


@dataclass(frozen=True)
class Forecast:
    """The steps and costs of a run; figures are `None` if the model's config or tokenizer is not
    here.
    """

    plan: Plan  # prompts, steps, checkpoints
    size: ModelSize | None
    memory: dict[str, int] | None  # bytes on each GPU by part
    checkpoint: int | None  # bytes of one
    prompt_tokens: float | None  # mean over the first prompts

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        batch = self.plan.batch
        plan = asdict(self.plan)
        for name in ("prompts", "completions", "slices", "passes", "completions_per_step"):
            plan["batch"][name] = getattr(batch, name)
        plan |= {
            name: getattr(self.plan, name) for name in ("prompts", "completions", "token_budget")
        }
        model = (
            None
            if self.size is None
            else {"parameters": self.size.parameters, "trainable": self.size.trainable}
        )
        figures = {"prompt_tokens": self.prompt_tokens, "checkpoint_bytes": self.checkpoint}
        return {**plan, **figures, "memory_bytes": self.memory, "model": model}


def make_forecast(
    recipe: Recipe, num_processes: int | None = None, rows: int | None = None
) -> Forecast:
    """Return the forecast of a checked recipe; `ValueError` if the rows do not fill a generation or
    cannot be counted here.

    `num_processes` defaults to that of the accelerate config, `rows` to a count of the training
    rows.
    """
    v = recipe.flat
    num_processes = num_processes or processes(v)
    if rows is None and not v["dataset_streaming"]:
        rows = count(recipe, train_rows)
    held_out = None
    if str(v["eval_strategy"]) != "no":
        with suppress(ValueError):  # they cannot be read here
            held_out = count(recipe, eval_rows)
    plan = make_plan(v, num_processes, rows, held_out)
    tokens = prompt_tokens(recipe)
    try:
        with deadline(PATIENCE), quiet("huggingface_hub"):
            size = model_size(v, recipe.model)
    except TooLate:
        size = None
    return Forecast(
        plan=plan,
        size=size,
        memory=memory_estimate(size, v, plan.batch, sharding(v), round(tokens or 0))
        if size
        else None,
        checkpoint=checkpoint_bytes(size, v, 1 <= sharding(v) <= 3) if size else None,
        prompt_tokens=tokens,
    )


def count(recipe: Recipe, rows_of: Callable[..., Any]) -> int:
    """Return how many rows the run will use of `train_rows` or `eval_rows`; `ValueError` if they
    cannot be read here.
    """
    from datasets import disable_progress_bars

    disable_progress_bars()
    try:
        with quiet("huggingface_hub"):
            return len(rows_of(recipe, prompts=False))
    except FileNotFoundError:
        raise
    except OSError as error:
        where = f"the rows of {recipe.run.dataset_name} cannot be counted here ({error})"
        raise ValueError(f"{where}: say how many with --rows.") from error


def prompt_tokens(recipe: Recipe) -> float | None:
    """Return the mean length of the first prompts; `None` if the tokenizer or the rows are not
    here.
    """
    aside = Findings()
    tokenizer = load_tokenizer(recipe.flat, aside)
    rows = first_rows(recipe, MEASURED, aside) if tokenizer else []
    if not rows:
        return None
    prompts, _ = read_prompts(recipe, rows, tokenizer, aside)
    return prompts["tokens"]["mean"] if prompts else None


def model_size(v: Values, model: ModelConfig) -> ModelSize | None:
    """Return the sizes of the recipe's model with its adapter, if any; `None` if its config is not
    here and not known.
    """
    name = v["model_name_or_path"]
    revision = v["model_revision"]
    trust = bool(v["trust_remote_code"])
    try:
        check_model_folder(Path(name).expanduser())
        config = known_config(name) or AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust
        )
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        made.tie_weights()
    except Exception:  # offline, no such model, or not a language model
        return None
    parameters = made.num_parameters()
    if (adapter := get_peft_config(model)) is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            made = get_peft_model(made, adapter)
    trainable = sum(p.numel() for p in made.parameters() if p.requires_grad)
    text = TextModel.of(config)
    hidden = config.get_text_config().hidden_size
    return ModelSize(
        parameters,
        trainable,
        text.dtype,
        hidden,
        text.num_hidden_layers,
        text.kv_heads * text.head_size,
    )


def known_config(name: str) -> Any:
    """Return the config of a model that `shapes.yaml` lists by its name, with or without
    `-Instruct`; `None` for others.
    """
    if (
        shape := data_yaml("grpo_ext.preflight", "shapes.yaml").get(name.removesuffix("-Instruct"))
    ) is None:
        return None
    keys = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    return AutoConfig.for_model(
        "qwen2", **dict(zip((*keys, "tie_word_embeddings"), shape, strict=True)), dtype="bfloat16"
    )
