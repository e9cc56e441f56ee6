"""Load models for the lm-evaluation-harness, with transformers or in a vLLM engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.common.quiet import quiet
from grpo_ext.evaluation.evaluate_recipe import init_kwargs, load_model, load_tokenizer
from grpo_ext.evaluation.vllm_completions import engine_arguments, pick_engine, shut_down
from grpo_ext.recipe.load import Recipe

if TYPE_CHECKING:
    from lm_eval.api.model import LM


@dataclass(frozen=True)
class CheckedModel:
    """A model to evaluate, with its tokenizer and the engine that runs it."""

    name: str
    tokenizer: Any
    engine: str

    @property
    def has_template(self) -> bool:
        """Whether prompts are formatted with a chat template."""
        return bool(self.tokenizer.chat_template)


def check_model(recipe: Recipe, name: str, engine: str) -> CheckedModel:
    """Check a model before its weights are loaded, and return it with its tokenizer and engine.

    Args:
        recipe: the recipe, which sets how the model is loaded.
        name: the folder or hub id of the model.
        engine: `transformers`, `vllm` or `auto` (see `pick_engine`).

    Raises:
        ValueError: if the engine cannot be used, or if the chat template, a program that may loop
            endlessly, takes too long to format a prompt.
        OSError: if the tokenizer cannot be loaded.
    """
    engine = pick_engine(engine, name, recipe.training.use_cpu)
    if engine == "vllm":
        check_vllm_metadata()
    tokenizer = load_tokenizer(recipe, name)
    if tokenizer.chat_template:  # tried here, because the harness applies it without a time limit
        prompts = [[{"role": "user", "content": "?"}]]
        encode_prompts(prompts, tokenizer, template_options(recipe))
    return CheckedModel(name, tokenizer, engine)


def template_options(recipe: Recipe) -> dict[str, Any] | None:
    """Return the recipe's `chat_template_kwargs`, or `None` if it sets none."""
    options: Any = recipe.training.chat_template_kwargs  # already parsed as a mapping
    return options


@contextmanager
def harness_model(recipe: Recipe, checked: CheckedModel, batch_size: int) -> Iterator[LM]:
    """Context manager that loads a model, and yields it in the form that the harness expects.

    On exit, a vLLM engine is shut down.

    Args:
        recipe: the recipe, which sets how the model is loaded.
        checked: the model, from `check_model`.
        batch_size: the number of sequences per batch with transformers; vLLM ignores it.
    """
    if checked.engine == "transformers":
        model = load_model(recipe, checked.name)
        yield as_harness_model(model, checked.tokenizer, batch_size, template_options(recipe))
        return
    from lm_eval.models.vllm_causallms import VLLM

    init = init_kwargs(recipe, checked.name)
    arguments = engine_arguments(
        checked.name,
        init["dtype"],
        recipe.training.vllm_max_model_length,
        revision=init.get("revision"),
        trust_remote_code=recipe.training.trust_remote_code,
    )
    vllm_model = VLLM(checked.name, chat_template_args=template_options(recipe), **arguments)
    try:
        yield vllm_model
    finally:
        shut_down(vllm_model.model)


def check_vllm_metadata() -> None:
    """Raise `ValueError` if the harness cannot look up the version of the installed vLLM."""
    try:
        version("vllm")
    except PackageNotFoundError:
        raise ValueError(
            "the lm-evaluation-harness cannot use this build of vLLM, because its package is not "
            "named vllm. Use --engine transformers."
        ) from None


def as_harness_model(
    model: Any,
    tokenizer: Any,
    batch_size: int,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> LM:
    """Wrap a loaded model for the harness, without copying its weights.

    Args:
        model: a transformers model.
        tokenizer: the tokenizer of the model.
        batch_size: the number of sequences per batch.
        chat_template_kwargs: additional arguments for the chat template.
    """
    from lm_eval.models.huggingface import HFLM

    with quiet("lm_eval.models.huggingface", logging.ERROR):  # HFLM warns about loaded models
        return HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            batch_size=batch_size,
            chat_template_args=chat_template_kwargs,
        )
