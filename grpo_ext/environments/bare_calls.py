"""Chat templates that do not keep the text before a tool call, such as that of Llama 3.

The templates of Gemma 4 and gpt-oss also use a separate end token for turns that call tools, and
take thoughts from a separate field of the message. `TurnTokens` tests these templates with a bare
call: a turn that contains a call but no text. If the template would change a sampled turn with a
call (for example, because there is text before the call), the call is not made. The model then
receives an error message; if the template cannot render one after this turn, the episode ends.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.seams.chat import parsed_fields

Message = dict[str, Any]
# renders messages with the chat template; `opens=True` adds the header of the model's next turn
Written = Callable[..., str]
QUESTION: Message = {"role": "user", "content": "a question"}
THOUGHT_FIELDS = ("reasoning_content", "thinking")
THOUGHT = "a thought"
CONTENT_TYPE = "<|constrain|>"  # gpt-oss may write it before the type of the arguments
BUILT_IN = "<|python_tag|>"  # begins a call of one of Llama's built-in tools
INCOMPLETE = "error: the turn ended before the call was complete; write a shorter turn"
UNREADABLE = "error: the call could not be read; write it in the format given in the instructions"
NOT_ALONE = (
    "error: the call was not made; write it alone, in the format given in the instructions, with "
    "no other text or marks around it"
)
CHANGES_CALLS = (
    "This chat template changes or drops tool calls, or the thoughts, text or end token around "
    "them, so the model would not see the tokens that it sampled. Use a model with another chat "
    "template, or describe the tools in the prompt and parse the calls in the environment's `step`."
)
CHANGES_THOUGHTS = (
    "This chat template drops the thoughts of earlier turns once `step` has answered a turn, or "
    "changes those turns in another way, so the model would not see the tokens that it sampled. "
    "Use an environment that answers with tools alone, without `step`, or a model with another "
    "chat template."
)


@dataclass(frozen=True)
class BareCalls:
    """Describes how a chat template renders a turn that contains only tool calls and a thought.

    Args:
        written: renders messages with the chat template.
        thought_field: the message field for thoughts; empty if the template has none.
        opening: the text at the beginning of a call, before the name of the tool.
        end: the id of the token that ends a turn with calls.
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
        """Return the rendered text that follows the end token of a turn with calls.

        The text consists of the results of the calls and the header of the next turn.

        Args:
            calls: the calls of the turn.
            answer: the results of the calls, as messages.
            end: the text of the end token.
            answers_texts: whether the environment also answers turns without calls.

        Raises:
            ValueError: if the template fails, does not end the turn with `end`, or changes or drops
                the turn, its thought or the text before it. The turn is checked both by itself and
                when results and later turns follow.
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
    """Return an assistant message with `calls`, a thought if `thought_field` is set, and no text.

    Without calls, the message has no `tool_calls`.
    """
    turn: Message = {"role": "assistant", "content": ""}
    if calls:
        turn["tool_calls"] = list(calls)
    if thought_field:
        turn[thought_field] = THOUGHT
    return turn


def writes_text_before(written: Written, call: Message) -> bool:
    """Return whether a chat template keeps the text that precedes a call in the same turn.

    Text that the template renders like a thought does not count as kept. `call` is an example call.
    """
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
    """Return how a chat template renders a turn that contains only a call and a thought.

    Args:
        written: renders messages with the chat template.
        call: an example of a tool call.
        tokenizer: the model's tokenizer; it must already be able to parse tool calls.
        ends: the ids of the tokens that end a turn.

    Raises:
        ValueError: if the template fails, changes the prompt, or renders the call without the
            tool's name or without text before the name; or if the last token of the turn is
            ordinary text or is not in `ends`.
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
            f"After a tool call, the chat template ends the turn with {name!r}, which is not one "
            "of the model's end tokens. In a local copy of the model, add the token's id "
            f"{end} to eos_token_id in generation_config.json."
        )
    return BareCalls(written, thought_field, opening, end)


def opening_of_call(written: Written, call: Message) -> str:
    """Return the stripped text that a template renders between a turn's header and a tool's name.

    Raises:
        ValueError: if this text is blank, the name is missing, or the template changes the prompt.
    """
    prompt = written([QUESTION], opens=True)
    text = written([QUESTION, bare_turn([call], "")])
    opening, name, _ = text.removeprefix(prompt).partition(call["function"]["name"])
    if not text.startswith(prompt) or not name or not opening.strip():
        raise ValueError(CHANGES_CALLS)
    return opening.strip()
