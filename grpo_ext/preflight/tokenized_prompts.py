"""The prompts as the model sees them, after chat template and tokenizer: their lengths, and known
faults.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

OPEN_TAG = "<think>"


def load_tokenizer(v: Values, findings: Findings) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer; `None`, with a finding, if it is not on this machine or cannot
    be loaded.
    """
    name = v["model_name_or_path"]
    here = where_from(v)
    try:
        return AutoTokenizer.from_pretrained(name, padding_side="left", **here)
    except Exception as error:  # a missing or broken file, code that is not trusted
        if Path(name).expanduser().is_dir():
            findings.problem(
                f"the tokenizer in {name} cannot be loaded: {error}", "model_name_or_path"
            )
        else:
            words = (
                f"the model {name} is no folder here and not in the cache, so prompts were "
                "not tokenized."
            )
            findings.note(words, "model_name_or_path")
        return None


def where_from(v: Values) -> dict[str, Any]:
    """Return the arguments with which transformers finds files of the recipe's model on this
    machine.
    """
    trust = bool(v["trust_remote_code"])
    return {"revision": v["model_revision"], "trust_remote_code": trust, "local_files_only": True}


def context_length(v: Values) -> int | None:
    """Return the limit of prompt and completion together, in tokens, of the model and of vLLM;
    `None` if unknown.
    """
    limits = [v["vllm_max_model_length"]] if v["use_vllm"] else []
    try:
        config = AutoConfig.from_pretrained(v["model_name_or_path"], **where_from(v))
        limits.append(getattr(config.get_text_config(), "max_position_embeddings", None))
    except Exception:  # not here, or unknown to this transformers: loading the model reports it
        pass
    return min((limit for limit in limits if limit), default=None)


def look_at_prompts(
    prompts: list[Any], tokenizer: PreTrainedTokenizerBase, v: Values, findings: Findings
) -> dict[str, Any] | None:
    """Return the `prompt_figures` of prompts, which the chat template writes; `None` after a
    problem.
    """
    kwargs = v["chat_template_kwargs"]
    if not isinstance(prompts[0], str) and not tokenizer.chat_template:
        words = (
            f"the tokenizer of {v['model_name_or_path']} has no chat template, and the task "
            "writes chat messages"
        )
        how = "name an instruct model, or put a chat_template.jinja beside its tokenizer."
        findings.problem(f"{words}: {how}", "model_name_or_path")
        return None
    try:
        ids = encode_prompts(prompts, tokenizer, kwargs if isinstance(kwargs, dict) else None)
    except Exception as error:  # whatever a template raises
        findings.problem(
            f"the chat template refuses a prompt: {type(error).__name__}: {error}",
            "model_name_or_path",
        )
        return None
    if isinstance(kwargs, dict):
        note_unread(kwargs, prompts, tokenizer, findings)
    return prompt_figures(ids, tokenizer, v, findings)


def note_unread(
    kwargs: dict[str, Any],
    prompts: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    findings: Findings,
) -> None:
    """Add a note on `chat_template_kwargs` that cannot change the prompts."""
    key = "chat_template_kwargs"
    if all(isinstance(prompt, str) for prompt in prompts):
        findings.note(f"{key} does nothing: the prompts are texts, without a chat template.", key)
        return
    template = str(tokenizer.chat_template)
    of_tokenizer = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in kwargs:
        if name not in of_tokenizer and not re.search(rf"\b{re.escape(name)}\b", template):
            findings.note(
                f"{key}: {name} does nothing: the model's chat template does not read it.", key
            )


def prompt_figures(
    ids: list[list[int]], tokenizer: PreTrainedTokenizerBase, v: Values, findings: Findings
) -> dict[str, Any]:
    """Return the figures of the prompts with these tokens.

    `{"rows": 256, "tokens": {"min": 21, "mean": 23.4, "max": 25}, "room": 952, "over": 0.0,
    "prefilled": false, "first": "<|"}`: `first` is the first prompt, `room` the limit of a prompt
    in tokens or `None`, `over` the share of longer prompts, `prefilled` whether the prompt opens
    the think tag.
    """
    first = str(tokenizer.decode(ids[0]))
    bos = tokenizer.bos_token_id
    if bos is not None and ids[0][:2] == [bos, bos]:
        words = "twice: the tokenizer adds it, so take it out of the task's prompts."
        findings.problem(f"prompts begin with {tokenizer.bos_token!r} {words}", "task")
    lengths = [len(tokens) for tokens in ids]
    room, over = _room(lengths, v, findings)
    tokens = {"min": min(lengths), "mean": sum(lengths) / len(lengths), "max": max(lengths)}
    prefilled = first.rstrip().endswith(OPEN_TAG)
    return {
        "rows": len(ids),
        "tokens": tokens,
        "room": room,
        "over": over,
        "prefilled": prefilled,
        "first": first,
    }


def _room(lengths: list[int], v: Values, findings: Findings) -> tuple[int | None, float]:
    """Return the limit of a prompt in tokens, and the share of prompts that are longer."""
    context = context_length(v)
    if context is None or v["max_completion_length"] is None:
        return None, 0.0
    room = context - v["max_completion_length"]
    over = sum(length > room for length in lengths) / len(lengths)
    words = (
        f"{over:.0%} of the first {len(lengths)} prompts leave no room for max_completion_length "
        f"{v['max_completion_length']} in the context of {context} tokens (the longest has "
        f"{max(lengths)})"
    )
    if over == 1:
        way = f"lower max_completion_length to at most {context - max(lengths)}."
        if context <= max(lengths):
            way = "shorten the prompts, or name a model with a longer context."
        findings.problem(f"{words}: {way}", "max_completion_length")
    elif over:
        findings.note(f"{words}.", "max_completion_length")
    return room, over
