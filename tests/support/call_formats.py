"""Tokenizers with the chat templates of Llama 3, Gemma 4 and gpt-oss, and how their calls look.

`python -m tests.support.call_formats` prints the calls and results in `docs/several-turns.md`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import trl
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.tiny.tokenizer import build_tokenizer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
MARKS = re.compile(r"<\|[a-z_\"]+\|?>|<[a-z_]+\|>")  # as the templates spell them


@dataclass(frozen=True)
class CallFormat:
    """The end tokens of a family of models, and the texts of its turns."""

    template: str
    ends: tuple[str, ...]  # first that of a turn without a call
    opening: str  # what stands between the header of a turn and the name of a tool
    before_arguments: str
    after_arguments: str  # with the end of the turn
    thought: tuple[str, str] | None  # what stands around a thought before a call
    final: tuple[str, str]  # what stands around the text of a turn without a call
    more_marks: tuple[str, ...] = ()

    def call(self, name, arguments, thought=""):
        written = json.dumps(arguments)
        if self.template.startswith("gemma4"):
            written = re.sub(r'"(\w+)": ', r"\1:", written).replace(", ", ",")
            written = written.replace('"', '<|"|>')
        before = ""
        if thought:
            before = thought.join(self.thought)
        return f"{before}{self.opening}{name}{self.before_arguments}{written}{self.after_arguments}"

    def say(self, text):
        return text.join(self.final)

    def tokenizer(self, folder):
        return self.adapted(AutoTokenizer.from_pretrained(folder, padding_side="left"))

    def adapted(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Give a tokenizer the chat template and its special tokens."""
        tokenizer.chat_template = (TEMPLATES / f"{self.template}.jinja").read_text()
        marks = {*MARKS.findall(tokenizer.chat_template), *self.ends, *self.more_marks}
        special = {"additional_special_tokens": sorted(marks), "eos_token": self.ends[0]}
        tokenizer.add_special_tokens({**special, "bos_token": "<bos>"})
        return tokenizer

    def end_tokens(self, tokenizer):
        return [tokenizer.convert_tokens_to_ids(end) for end in self.ends]


def llama(template):
    return CallFormat(
        template,
        ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        opening='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}<|eot_id|>",
        thought=None,
        final=("", "<|eot_id|>"),
        more_marks=("<|python_tag|>",),
    )


def gemma(template):
    return CallFormat(
        template,
        ends=("<turn|>", "<|tool_response>", "<eos>"),
        opening="<|tool_call>call:",
        before_arguments="",
        after_arguments="<tool_call|><|tool_response>",
        thought=("<|channel>thought\n", "\n<channel|>"),
        final=("", "<turn|>"),
    )


GPT_OSS = CallFormat(
    "gptoss",
    ends=("<|return|>", "<|call|>", "<|endoftext|>"),
    opening=" to=functions.",
    before_arguments="<|channel|>commentary json<|message|>",
    after_arguments="<|call|>",
    thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    final=("<|channel|>final<|message|>", "<|return|>"),
    more_marks=("<|constrain|>",),
)
FORMATS = [
    llama("llama3_1"),
    llama("llama3_2"),
    gemma("gemma4"),
    gemma("gemma4_v3"),
    gemma("gemma4_v4"),
    gemma("gemma4_v5"),
    GPT_OSS,
]


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def examples() -> str:
    """Return a call and its result in each form, as they are played, after the templates' names."""
    templates: dict[tuple[str, str], list[str]] = {}
    for form in FORMATS:
        tokenizer = form.adapted(build_tokenizer(["What is 3 times 4?"]))
        ends = form.end_tokens(tokenizer)
        tokens = TurnTokens(tokenizer, ends, None, [multiply], answers_texts=False)
        ids = tokens.tokens_of(form.call("multiply", {"a": 3, "b": 4}))
        message, fault = tokens.message("", ids, tokens.prompt([{"role": "user", "content": "x"}]))
        assert message["tool_calls"] and fault is None
        result = {"role": "tool", "name": "multiply", "content": "12"}
        answer = tokens.answer([result], ended=True)
        texts = (str(tokenizer.decode(ids)), str(tokenizer.decode(answer)))
        templates.setdefault(texts, []).append(form.template)
    lines = []
    for (call, result), names in templates.items():
        lines.append(", ".join(names))
        lines.append(f"  call    {call}")
        lines.append("  result  " + result.replace("\n", "\\n"))
    return "\n".join(lines)


if __name__ == "__main__":
    print(examples())
