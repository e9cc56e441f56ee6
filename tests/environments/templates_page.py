"""Write `docs/chat-templates.md`: which chat templates episodes accept, by trying each of them.

`make templates` runs it. The templates are those that TRL ships, and short ones of other families.
Each gets a small tokenizer with the special tokens that it writes, and the end tokens of its
models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import trl
from transformers import PreTrainedTokenizerBase

from grpo_ext.environments.earlier_turns import EarlierTurnChanged
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.seams.chat import is_training_template
from grpo_ext.tiny.tokenizer import build_tokenizer
from tests.support.places import REPO
from tests.support.short_templates import SHORT_TEMPLATES

PAGE = REPO / "docs" / "chat-templates.md"
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TAGS = re.compile(r"<[|｜][\w▁\"]+[|｜]?>|<\w+\|>|<(?:start|end)_of_turn>")
QWEN = ("<|im_end|>", "<|endoftext|>")
GEMMA_4 = ("<turn|>", "<|tool_response>", "<eos>")
LLAMA = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
# the models of each template, and their end tokens
FAMILIES = {
    "qwen2_5": ("Qwen2.5", QWEN),
    "qwen3": ("Qwen3", QWEN),
    "qwen3_instruct_2507": ("Qwen3 Instruct 2507", QWEN),
    "qwen3_5_think": ("Qwen3.5, thinking", QWEN),
    "qwen3_5_nothink": ("Qwen3.5, not thinking", QWEN),
    "qwen3_6": ("Qwen3.6", QWEN),
    "qwen3_8": ("Qwen3.8", QWEN),
    "deepseek_r1_distill": ("DeepSeek-R1-Distill", ("<｜end▁of▁sentence｜>",)),
    "deepseekv3": ("DeepSeek-V3", ("<｜end▁of▁sentence｜>",)),
    "llama3": ("Llama 3", LLAMA),
    "llama3_1": ("Llama 3.1", LLAMA),
    "llama3_2": ("Llama 3.2", LLAMA),
    "gemma": ("Gemma 1 and 2", ("<end_of_turn>", "<eos>")),
    "gemma3": ("Gemma 3", ("<end_of_turn>", "<eos>")),
    "gemma4": ("Gemma 4", GEMMA_4),
    "gemma4_v2": ("Gemma 4, second template", GEMMA_4),
    "gemma4_v5": ("Gemma 4, fifth template", GEMMA_4),
    "gptoss": ("gpt-oss", ("<|return|>", "<|call|>", "<|endoftext|>")),
    "phi3": ("Phi-3", ("<|end|>", "<|endoftext|>")),
    "phi3_5": ("Phi-3.5", ("<|end|>", "<|endoftext|>")),
    "glm4moe": ("GLM-4-MoE", ("<|endoftext|>", "<|user|>", "<|observation|>")),
    "nemotron_3_nano": ("Nemotron 3 Nano", QWEN),
    "nemotron_3_ultra": ("Nemotron 3 Ultra", QWEN),
    "lfm2": ("LFM2", ("<|im_end|>",)),
    "lfm2_v2": ("LFM2, second template", ("<|im_end|>",)),
    "lfm2_2_5": ("LFM2.5", ("<|im_end|>",)),
    "chatml": ("ChatML", QWEN),
    "smollm2": ("SmolLM2", QWEN),
    "zephyr": ("Zephyr, TinyLlama", ("</s>",)),
    "mistral_v1": ("Mistral Instruct v0.1", ("</s>",)),
    "mistral_v2": ("Mistral Instruct v0.2", ("</s>",)),
    "llama2": ("Llama 2", ("</s>",)),
    "cohere": ("Command R", ("<|END_OF_TURN_TOKEN|>",)),
    "cohere2": ("Command R7B and A", ("<|END_OF_TURN_TOKEN|>",)),
}
INTRODUCTION = """# Chat templates that episodes accept

This page says which chat templates work with [episodes](several-turns.md), that is, with an
environment that answers the model's turns. An episode needs a template that renders an earlier turn
exactly as the model sampled it, with its thoughts and its end token. With any other template, the
model would be trained on conversations that differ from those that a server gives it.

`make templates` writes this page by trying templates that TRL ships, each with a tokenizer that has
the special tokens of the template; a test compares the page with the code. The rows from ChatML to
Llama 2 try short templates that follow the rules of these models. The models' own template files
may differ, so run `grpo-ext check` to see what applies to your model.

The columns stand for an environment whose `step` answers the turns, an environment that has only
tools, and an environment that has both. The cells mean:

- **own**: the model's own template is used.
- **variant**: the template changes earlier turns. TRL's training variant of the template, which
  keeps them, is used instead, and is saved with the model.
- **with an option**: the template keeps earlier turns if this option is set in
  `chat_template_kwargs`.
- **refused**: the template is rejected, for the reason given below the table. `check` and `train`
  report it before a model is loaded.

| models | `step` answers | tools | tools and `step` |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Trial:
    """What became of a template: the word in the table, and the reason of a refusal."""

    word: str
    reason: str = ""


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def tokenizer_of(template: str) -> PreTrainedTokenizerBase:
    """Return a small tokenizer with a template, its special tokens and the end tokens."""
    text = SHORT_TEMPLATES.get(template)
    if text is None:
        text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    _, ends = FAMILIES[template]
    tokenizer = build_tokenizer(["a question", "a turn", "an answer"] * 10, 400)
    marks = sorted({*TAGS.findall(text), *ends})
    tokenizer.add_special_tokens({"additional_special_tokens": marks, "bos_token": "<bos>"})
    tokenizer.chat_template = text
    return tokenizer


def turn_tokens(template, tools=(), answers_texts=True, **options) -> TurnTokens:
    """Return the `TurnTokens` of a template, or raise what it is refused for."""
    tokenizer = tokenizer_of(template)
    _, ends = FAMILIES[template]
    end_ids = [tokenizer.convert_tokens_to_ids(end) for end in ends]
    return TurnTokens(tokenizer, end_ids, options, tools, answers_texts)


def tried(template: str, tools=(), answers_texts=True) -> Trial:
    """Return whether episodes accept a template."""
    try:
        tokens = turn_tokens(template, tools, answers_texts)
    except EarlierTurnChanged as error:
        _, found, option = str(error).partition("Set `chat_template_kwargs: {")
        if found:
            return Trial(f"with `{option.partition('}')[0]}`")
        return Trial("refused", str(error))
    except ValueError as error:
        return Trial("refused", str(error))
    if is_training_template(tokens.tokenizer.chat_template):
        return Trial("variant")
    return Trial("own")


def page() -> str:
    """Return the page."""
    rows = []
    reasons: dict[str, list[str]] = {}
    for template, (models, _) in FAMILIES.items():
        trials = {
            "`step`": tried(template),
            "tools": tried(template, [multiply], answers_texts=False),
            "tools and `step`": tried(template, [multiply]),
        }
        rows.append(f"| {models} | {' | '.join(trial.word for trial in trials.values())} |\n")
        for use, trial in trials.items():
            if trial.reason:
                reasons.setdefault(trial.reason, []).append(f"{models} ({use})")
    text = INTRODUCTION + "".join(rows) + "\n## Why templates are refused\n\n"
    for reason, uses in reasons.items():
        lines = ", ".join(uses)
        text += f"{lines}:\n\n```text\n{reason}\n```\n\n"
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
