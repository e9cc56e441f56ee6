"""Check prompts as the model sees them, after the chat template and the tokenizer."""

import inspect
import re
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.common.untrusted import first_line
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

OPEN_TAG = "<think>"


def load_tokenizer(v: Values, findings: Findings) -> PreTrainedTokenizerBase | None:
    """Load the model's tokenizer; if this fails, report why and return `None`.

    Nothing is downloaded. A failure is a problem if the model is a folder, and otherwise a note.
    """
    name = v["model_name_or_path"]
    try:
        return AutoTokenizer.from_pretrained(name, padding_side="left", **local_options(v))
    except Exception as error:  # a missing or broken file, or code that is not trusted
        if Path(name).expanduser().is_dir():
            findings.problem(
                f"the tokenizer in {name} cannot be loaded: {error}", "model_name_or_path"
            )
        else:
            findings.note(
                f"the tokenizer of {name} cannot be loaded from the local Hub cache "
                f"({first_line(error)}), so the prompts were not tokenized and their lengths are "
                "unknown.",
                "model_name_or_path",
            )
        return None


def local_options(v: Values) -> dict[str, Any]:
    """Return the `from_pretrained` arguments that load from this machine, without any download."""
    return {
        "revision": v["model_revision"],
        "trust_remote_code": bool(v["trust_remote_code"]),
        "local_files_only": True,
    }


def context_length(v: Values) -> int | None:
    """Return how many tokens a prompt and its completion may have together.

    This is the model's context length or, if vLLM samples and `vllm_max_model_length` is smaller,
    that value. Unknown limits are ignored; if none is known, return `None`.
    """
    limits = []
    if v["use_vllm"]:
        limits.append(v["vllm_max_model_length"])
    try:
        config = AutoConfig.from_pretrained(v["model_name_or_path"], **local_options(v))
    except Exception:  # not here, or unknown to transformers; loading the model reports it
        pass
    else:
        limits.append(getattr(config.get_text_config(), "max_position_embeddings", None))
    return min(filter(None, limits), default=None)


def check_tokenized_prompts(
    prompts: list[Any],
    tokenizer: PreTrainedTokenizerBase,
    v: Values,
    findings: Findings,
) -> dict[str, Any] | None:
    """Check that the chat template accepts the prompts, and check the tokenized prompts.

    Args:
        prompts: strings, or lists of chat messages; at least one.
        tokenizer: the model's tokenizer.
        v: the values of the recipe.
        findings: receives the problems and notes.

    Returns:
        The result of `prompt_figures`, or `None` if the chat template is missing or fails.
    """
    if not isinstance(prompts[0], str) and not tokenizer.chat_template:
        findings.problem(
            f"the tokenizer of {v['model_name_or_path']} has no chat template, but the "
            "prompts are chat messages. Use an instruct model, or put a chat_template.jinja next "
            "to the tokenizer.",
            "model_name_or_path",
        )
        return None
    kwargs = v["chat_template_kwargs"]
    if not isinstance(kwargs, dict):
        kwargs = None
    try:
        ids = encode_prompts(prompts, tokenizer, kwargs)
    except Exception as error:  # whatever a template raises
        findings.problem(
            f"the chat template fails on {failing(prompts, tokenizer, kwargs)}: "
            f"{type(error).__name__}: {error}",
            "model_name_or_path",
        )
        return None
    has_template = not all(isinstance(prompt, str) for prompt in prompts)
    if kwargs is not None:
        note_unused_arguments(kwargs, has_template, tokenizer, findings)
    if has_template:
        note_todays_date(kwargs or {}, str(tokenizer.chat_template), findings)
    return prompt_figures(ids, tokenizer, v, findings)


def failing(
    prompts: list[Any], tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any] | None
) -> str:
    """Return a phrase that names the first prompt on which the chat template fails.

    The phrase is, for example, "the prompt of row 3" (1-based), or "the prompts" if the template
    accepts each prompt on its own.

    Args:
        prompts: strings, or lists of chat messages.
        tokenizer: the model's tokenizer, with the template.
        kwargs: the `chat_template_kwargs`; `None` if there are none.
    """
    for number, prompt in enumerate(prompts, 1):
        try:
            encode_prompts([prompt], tokenizer, kwargs)
        except Exception:  # whatever a template raises
            return f"the prompt of row {number}"
    return "the prompts"


def note_unused_arguments(
    kwargs: dict[str, Any],
    has_template: bool,
    tokenizer: PreTrainedTokenizerBase,
    findings: Findings,
) -> None:
    """Add a note for each of the `chat_template_kwargs` that has no effect on the prompts.

    If no prompt consists of chat messages, a single note covers all of these arguments.

    Args:
        kwargs: the `chat_template_kwargs`.
        has_template: whether some prompts are chat messages, to which the template is applied.
        tokenizer: the model's tokenizer, with the template.
        findings: receives the notes.
    """
    key = "chat_template_kwargs"
    if not has_template:
        findings.note(
            f"{key} does nothing, because the prompts are strings, not chat messages. Remove it.",
            key,
        )
        return
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    names_in_template = set(re.findall(r"\w+", str(tokenizer.chat_template)))
    for name in kwargs:
        if name not in parameters and name not in names_in_template:
            findings.note(
                f"`{key}: {name}` does nothing, because the model's chat template does not use "
                f"{name}. Remove this argument, or correct its name.",
                key,
            )


def note_todays_date(kwargs: dict[str, Any], template: str, findings: Findings) -> None:
    """Add a note if the chat template inserts today's date, so that prompts change every day.

    No note is added if `kwargs` sets the date with `date_string`.

    Args:
        kwargs: the `chat_template_kwargs`.
        template: the chat template.
        findings: receives the note.
    """
    key = "chat_template_kwargs"
    if "strftime_now" not in template or "date_string" in kwargs:
        return
    if "date_string" in template:
        findings.note(
            "the model's chat template writes today's date into prompts, so a run that is resumed "
            "on another day trains on different prompts. Set `chat_template_kwargs: {date_string: "
            "26 Jul 2024}`, or any other fixed date.",
            key,
        )
    else:
        findings.note(
            "the model's chat template writes today's date into prompts, so a run that is resumed "
            "on another day trains on different prompts. Save the tokenizer with a template that "
            "has a fixed date.",
            key,
        )


def prompt_figures(
    ids: list[list[int]], tokenizer: PreTrainedTokenizerBase, v: Values, findings: Findings
) -> dict[str, Any]:
    """Check tokenized prompts, and return figures about them.

    Args:
        ids: the token ids of each prompt.
        tokenizer: the model's tokenizer.
        v: the values of the recipe.
        findings: receives the problems and notes, such as a doubled BOS token, or prompts that
            leave no room for a completion.

    Returns:
        A dict such as `{"rows": 256, "tokens": {"min": 21, "mean": 23.4, "max": 25}, "room": 952,
        "over": 0.0, "prefilled": False, "first": "<|"}`. `room` is the maximum length of a prompt
        in tokens, or `None` if it is unknown; `over` is the share of longer prompts; `prefilled`
        says whether the first prompt ends with `<think>`; and `first` is the text of the first
        prompt.
    """
    first_prompt = str(tokenizer.decode(ids[0]))
    bos = tokenizer.bos_token_id
    if bos is not None and ids[0][:2] == [bos, bos]:
        findings.problem(
            f"the first prompt begins with {tokenizer.bos_token!r} twice, because the tokenizer or "
            "its chat template adds this token to a prompt that already begins with it. Remove the "
            "token from the task's prompts.",
            "task",
        )
    lengths = list(map(len, ids))
    room, over = room_for_prompts(lengths, v, findings)
    return {
        "rows": len(ids),
        "tokens": {"min": min(lengths), "mean": sum(lengths) / len(ids), "max": max(lengths)},
        "room": room,
        "over": over,
        "prefilled": first_prompt.rstrip().endswith(OPEN_TAG),
        "first": first_prompt,
    }


def room_for_prompts(lengths: list[int], v: Values, findings: Findings) -> tuple[int | None, float]:
    """Check that prompts leave room for a completion of maximum length in the model's context.

    Args:
        lengths: the number of tokens of each prompt.
        v: the values of the recipe.
        findings: receives a problem if all prompts are too long, and a note if some are.

    Returns:
        The maximum length of a prompt in tokens, and the share of longer prompts. They are `None`
        and 0 if the context length or `max_completion_length` is unknown.
    """
    context = context_length(v)
    completion = v["max_completion_length"]
    if context is None or completion is None:
        return None, 0.0
    longest = max(lengths)
    over = sum(length > context - completion for length in lengths) / len(lengths)
    key = "max_completion_length"
    if over == 1 and context > longest:
        findings.problem(
            f"None of the first {len(lengths)} prompts leaves room for {completion} tokens "
            f"(max_completion_length) in the context of {context} tokens (the longest prompt has "
            f"{longest}). Lower max_completion_length to at most {context - longest}.",
            key,
        )
    elif over == 1:
        findings.problem(
            f"None of the first {len(lengths)} prompts leaves room for {completion} tokens "
            f"(max_completion_length), and the longest prompt ({longest} tokens) fills the whole "
            f"context of {context} tokens. Drop long prompts with max_prompt_tokens and lower "
            "max_completion_length, use a model with a longer context, or raise "
            "vllm_max_model_length if it is the limit.",
            key,
        )
    elif over:
        findings.note(
            f"For {round(over * len(lengths))} of the first {len(lengths)} prompts, there is no "
            f"room for {completion} tokens (max_completion_length) in the context of {context} "
            f"tokens (the longest prompt has {longest}). Lower max_completion_length, or drop "
            "long prompts with max_prompt_tokens.",
            key,
        )
    return context - completion, over
