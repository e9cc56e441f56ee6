"""Chat templates that write a call without the text before it: Llama 3, Gemma 4 and gpt-oss.

Gemma 4 and gpt-oss end a turn that calls a tool with a different end token, and read thoughts from
a separate field of the message. `TurnTokens` examines these templates with a bare call. A turn that
the template would change, such as a call after other text, is answered with an error.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.seams.chat import parsed_fields

Message = dict[str, Any]
Written = Callable[..., str]  # writes messages with the chat template; `opens` adds the next header
QUESTION: Message = {"role": "user", "content": "a question"}
THOUGHT_FIELDS = ("reasoning_content", "thinking")
THOUGHT = "a thought"
CONTENT_TYPE = "<|constrain|>"  # gpt-oss may write it before the type of the arguments
BUILT_IN = "<|python_tag|>"  # Llama's mark of calls that its template writes for built-in tools
INCOMPLETE = "error: the turn ended before the call was complete; write a shorter turn"
UNREADABLE = "error: the call could not be read; write its name and arguments as one JSON object"
NOT_ALONE = (
    "error: the call was not made; write it alone, in the form of the instructions, with no other "
    "text or marks around it"
)
CHANGES_CALLS = (
    "This chat template changes or drops calls of tools or the thoughts before them when it writes "
    "their results, so the model would not read the tokens that it sampled. Use a model with "
    "another chat template, or describe the tools in the prompt, and parse the calls in `step` of "
    "an environment."
)
CHANGES_THOUGHTS = (
    "This chat template drops the thoughts of earlier turns once `step` has answered a turn, so "
    "the model would not read the tokens that it sampled. Use an environment that answers with "
    "tools alone, without `step`, or a model with another chat template."
)


@dataclass(frozen=True)
class BareCalls:
    """Describes how a chat template writes a turn that contains only calls and a thought.

    Args:
        written: writes messages with the chat template.
        thought_field: the field of a message for thoughts; empty if the template has none.
        opening: the text that begins a call.
        end: the token that ends a turn with calls.
    """

    written: Written
    thought_field: str
    opening: str
    end: int

    def after_a_call(
        self,
        calls: Sequence[Message],
        answer: Sequence[Message],
        end: str,
        answers_texts: bool,
    ) -> str:
        """Return the text that the template writes after the end token of a turn with calls.

        Args:
            calls: the calls of the turn.
            answer: the results of the calls.
            end: the text of the end token.
            answers_texts: whether the environment also answers turns without calls.

        Raises:
            ValueError: if the template fails, or if it changes or drops the turn, its thought or
                earlier text when an answer, another call or a turn without a call follows.
        """
        turn = bare_turn(calls, self.thought_field)
        conversation = [QUESTION, turn, *answer]
        prompt = self.written([QUESTION], opens=True)
        until_end = self.written([QUESTION, turn]).rstrip()
        text = self.written(conversation, opens=True)
        another = self.written([*conversation, turn, *answer], opens=True)
        sampled = until_end.removeprefix(prompt)
        names = [call["function"]["name"] for call in calls]
        is_whole = all(name in sampled for name in names)
        if self.thought_field:
            is_whole = is_whole and THOUGHT in sampled
        is_kept = until_end.startswith(prompt) and text.startswith(until_end)
        if not (is_whole and is_kept and until_end.endswith(end) and another.startswith(text)):
            raise ValueError(CHANGES_CALLS)
        if answers_texts:
            later = self.written([*conversation, bare_turn((), self.thought_field), QUESTION])
            is_dropped = later.count(THOUGHT) < 2 and self.thought_field
            if is_dropped or not later.startswith(text):
                raise ValueError(CHANGES_THOUGHTS)
        return text.removeprefix(until_end)


def bare_turn(calls: Sequence[Message], thought_field: str) -> Message:
    """Return a turn with calls and, if `thought_field` is not empty, a thought, but no text."""
    turn: Message = {"role": "assistant", "content": ""}
    if calls:
        turn["tool_calls"] = list(calls)
    if thought_field:
        turn[thought_field] = THOUGHT
    return turn


def writes_text_before(written: Written, call: Message) -> bool:
    """Return whether a chat template writes the text before a call as text, not as a thought."""
    turn = {"role": "assistant", "tool_calls": [call]}
    with_text = written([QUESTION, {**turn, "content": THOUGHT}])
    with_thought = written([QUESTION, {**turn, "content": "", "thinking": THOUGHT}])
    before_call, _, _ = with_text.partition(call["function"]["name"])
    return THOUGHT in before_call and with_text != with_thought


def bare_calls(
    written: Written,
    call: Message,
    tokenizer: PreTrainedTokenizerBase,
    ends: Collection[int],
) -> BareCalls:
    """Examine how a chat template writes a turn that contains only a call and a thought.

    Args:
        written: writes messages with the chat template.
        call: a call of a tool.
        tokenizer: the model's tokenizer, which can parse calls.
        ends: tokens that end a turn of the model.

    Raises:
        ValueError: if the template does not write such turns, or ends them with a token that is
            ordinary text or not in `ends`.
    """
    fields = parsed_fields(tokenizer)
    thought_field = next((name for name in THOUGHT_FIELDS if name in fields), "")
    opening = opening_of_call(written, call)
    text = written([QUESTION, bare_turn([call], thought_field)])
    *_, end = tokenizer(text.rstrip(), add_special_tokens=False)["input_ids"]
    if end not in tokenizer.added_tokens_decoder:
        raise ValueError(CHANGES_CALLS)
    if end not in ends:
        name = str(tokenizer.decode([end]))
        raise ValueError(
            f"The chat template ends a turn that calls a tool with {name!r}, which is not one "
            f"of the model's end tokens. In a local copy of the model, add its number {end} to "
            "eos_token_id in generation_config.json."
        )
    return BareCalls(written, thought_field, opening, end)


def opening_of_call(written: Written, call: Message) -> str:
    """Return the text between the header of a turn and the name of the tool that it calls.

    Raises:
        ValueError: if the template writes no such text, or does not write the name after it.
    """
    prompt = written([QUESTION], opens=True)
    text = written([QUESTION, bare_turn([call], "")])
    opening, name, _ = text.removeprefix(prompt).partition(call["function"]["name"])
    if not text.startswith(prompt) or not name or not opening.strip():
        raise ValueError(CHANGES_CALLS)
    return opening.strip()
