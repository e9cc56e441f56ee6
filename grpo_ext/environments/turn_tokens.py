"""The tokens that a chat template puts between two turns of the model.

A turn keeps the tokens that were sampled: it is never decoded and tokenized again.

A template renders a conversation like this, where `/` is a line break and everything except the
turns and the answer comes from the template::

    ... <|im_start|>assistant / 17 <|im_end|>     the turn "17"
    / <|im_start|>user / low <|im_end|> /         the answer "low"
    <|im_start|>assistant / 24 <|im_end|>         the turn "24"
"""

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.stop_strings import StopStrings
from grpo_ext.environments.bare_calls import (
    QUESTION,
    BareCalls,
    Message,
    bare_calls,
    bare_turn,
    writes_text_before,
)
from grpo_ext.environments.earlier_turns import (
    EarlierTurnChanged,
    after_turn,
    end_of_turn,
    options_of_thoughts,
)
from grpo_ext.environments.turn_reader import TurnReader
from grpo_ext.seams.chat import (
    is_training_template,
    learn_to_parse,
    training_template,
)

ANSWER = "an answer of the environment"
OPENING = "the text with which an environment opens"
RESULT = 'a "result"\nof a call: é'  # shows whether a template writes results of tools as JSON
CHANGES_ANSWERS = (
    "This chat template changes, repeats or drops an environment's answers, so the model would not "
    "see them as they are. Use a model with another chat template."
)
Shape = tuple[tuple[str, str], ...]  # the (role, name) of each message of an answer
USER = (("user", ""),)


class TurnTokens:
    """Converts prompts and answers to tokens with the chat template, and sampled turns to messages.

    If the template changes earlier turns and TRL has a training variant of the template that keeps
    them, the variant replaces the template. It becomes the tokenizer's `chat_template` and is saved
    with the model, so that a served model formats conversations as in training.

    Args:
        tokenizer: the model's tokenizer, which is changed in place: its chat template may be
            replaced and, with tools, a response template for parsing calls is added.
        ends: the ids of the tokens that end a turn.
        template_options: further arguments for the template (`chat_template_kwargs`).
        tools: functions that the prompt describes and the model may call.
        answers_texts: whether the environment answers turns without calls.
        stop_strings: strings that also end a turn.

    Raises:
        ValueError: if the tokenizer has no chat template; if the template fails, changes earlier
            turns or answers, ends turns with a token that is not in `ends`, or does not describe
            the tools; or if TRL cannot parse the template's tool calls.
    """

    stops: StopStrings | None = None  #: finds stop strings; `None` if there are none

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int],
        template_options: dict[str, Any] | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        answers_texts: bool = True,
        stop_strings: Sequence[str] = (),
    ):
        if not tokenizer.chat_template:
            raise ValueError(
                "Episodes need a chat template, but the tokenizer has none. Use an instruct model, "
                "or put a chat_template.jinja next to the tokenizer."
            )
        self.tokenizer = tokenizer
        self.ends = frozenset(ends)
        if stop_strings:
            self.stops = StopStrings(tokenizer, stop_strings)
        self.tools = list(tools)
        self._options: dict[str, Any] = dict(template_options or {})
        if tools:
            self._options["tools"] = self.tools
        self._around: dict[Shape, list[list[int]]] = {}
        self._answers_texts = answers_texts or not tools
        self._bare: BareCalls | None = None
        self._result_is_json = False  # whether the template renders tool results as JSON
        self._reader: TurnReader | None = None
        self.end = end_of_turn(self._written, tokenizer, self.ends, self._answers_texts)
        self._find_template()
        prompt = self._written([QUESTION])
        for tool in tools:
            if tool.__name__ not in prompt:
                raise ValueError(
                    f"This chat template does not describe tools: {tool.__name__} is missing from "
                    "the prompt. Use a model whose chat template supports tools, or describe the "
                    "tools in the prompt and parse the calls in the environment's `step`."
                )
        if tools:
            learn_to_parse(tokenizer)
            self._reader = TurnReader(
                tokenizer,
                self.ends,
                self.tools,
                self._find_opening_of_call(),
                self.end,
                self._bare,
                answers_texts,
                self.stops,
            )
        variant = self._options.pop("chat_template", None)
        if variant is not None:
            with suppress(ValueError):  # TRL knows how to parse the original, not the variant
                learn_to_parse(tokenizer)
            tokenizer.chat_template = variant

    def end_turn(self, ids: list[int], first: int) -> bool:
        """Return whether the last token is an end token or completes a stop string.

        Args:
            ids: the tokens of the episode so far.
            first: the index of the first token of the current turn.
        """
        if ids[-1] in self.ends:
            return True
        return self.stops is not None and self.stops.end_with(ids, first)

    def prompt(self, messages: list[Message], opening: str = "") -> list[int]:
        """Return the token ids of a conversation, followed by the header of the model's turn.

        Args:
            messages: the conversation.
            opening: the end of the last message, if the environment wrote it. The text of a special
                token in `opening` is tokenized as plain text.

        Raises:
            ValueError: if `opening` contains the text of a special token, and the template fails or
                changes more than the whitespace around `opening`.
        """
        if opening and self._spells_special_token(messages[-1]["content"], len(opening)):
            before, middle, after = self._around_opening(messages, opening)
            ids = self.tokens_of(before)
            ids += self.plain_tokens(middle)
            ids += self.tokens_of(after)
            return ids
        encoded: Any = self.tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self._options,
        )
        return list(encoded["input_ids"])

    def answer(self, messages: list[Message], ended: bool) -> list[int]:
        """Return the tokens of an answer, including the template's tokens before and after it.

        The last tokens are the header of the model's next turn.

        Args:
            messages: the answer as chat messages.
            ended: whether the turn before the answer has its end token. If not, the result begins
                with the end token.

        Raises:
            ValueError: if the template fails on an answer with these roles, or changes it.
        """
        shape = []
        for message in messages:
            shape.append((message["role"], message.get("name", "")))
        before, *after_each = self._of_shape(tuple(shape))
        ids = [] if ended else [self._end_before(messages)]
        ids += before
        for message, after in zip(messages, after_each, strict=True):
            ids += self.content_tokens(message)
            ids += after
        return ids

    def content_tokens(self, message: Message) -> list[int]:
        """Return the tokens of a message's content, as the template renders it.

        The result of a tool is converted to a JSON string if the template renders it as one.
        """
        content = message["content"]
        if message["role"] == "tool" and self._result_is_json:
            content = json.dumps(content, ensure_ascii=False)
        return self.plain_tokens(content)

    def ended(self, ids: list[int]) -> list[int]:
        """Return the tokens of a turn, with an end token added if there is none.

        If the template has a separate end token for turns with calls, a turn with a call gets that
        one, even if the call is invalid.
        """
        if self.ends & {*ids}:
            return ids
        message, fault = self.message(str(self.tokenizer.decode(ids)), ids, [])
        has_call = fault is not None or bool(message.get("tool_calls"))
        if has_call and self._bare is not None:
            return [*ids, self._bare.end]
        return [*ids, self.end]

    def _end_before(self, answer: list[Message]) -> int:
        """Return the id of the end token for the turn that this answer follows."""
        if self._bare is not None and answer[0]["role"] == "tool":
            return self._bare.end
        return self.end

    def as_written(self, ids: list[int]) -> dict[str, Any]:
        """Return log fields that record a turn exactly as it was sampled.

        `raw` is the turn's text, including special tokens and the markup of calls. `raw_ids`, the
        turn's token ids, is included only if tokenizing `raw` would give other ids.
        """
        text = str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        if self.tokens_of(text) == ids:
            return {"raw": text}
        return {"raw": text, "raw_ids": ids}

    def tokens_of(self, text: str) -> list[int]:
        """Tokenize text that comes from the template or the model.

        Special tokens in the text are recognized; no others are added.
        """
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain_tokens(self, text: str) -> list[int]:
        """Tokenize text, treating special tokens in it as plain text."""
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])

    def _spells_special_token(self, content: str, length: int) -> bool:
        """Return whether the text of a special token ends in the last `length` characters."""
        begin = len(content) - length
        for token in self.tokenizer.added_tokens_decoder.values():
            if not token.special:
                continue
            first = max(0, begin - len(token.content) + 1)
            if content.find(token.content, first) >= 0:
                return True
        return False

    def _around_opening(self, messages: list[Message], opening: str) -> tuple[str, str, str]:
        """Render a conversation; split it into the text before `opening`, `opening`, and the rest.

        `opening` is the end of the last message; the template may change the whitespace around it.

        Raises:
            ValueError: if the template changes more than this whitespace.
        """
        *earlier, last = messages
        begin = last["content"].removesuffix(opening)
        marked_message = {**last, "content": begin + OPENING}
        marked = self._written([*earlier, marked_message], opens=True)
        text = self._written(messages, opens=True)
        before, _, after = marked.rpartition(OPENING)
        end = len(text) - len(after)
        middle = text[len(before) : end]
        if text != before + middle + after or middle.strip() != opening.strip():
            raise ValueError(
                "The text that `reset` returned contains a special token. The token cannot be kept "
                "as plain text, because this chat template changes the end of the last message. "
                "Return text without special tokens."
            )
        return before, middle, after

    def message(
        self,
        text: str,
        ids: list[int],
        prefix: list[int],
    ) -> tuple[Message, Message | None]:
        """Parse a turn; return it as a chat message, with an error message if its call is invalid.

        The error message is the reply to the turn. It is `None` if the turn has no calls or only
        valid ones. It is also `None` if the template cannot render such a reply; the episode then
        ends.

        Args:
            text: the turn without special tokens.
            ids: the tokens of the turn.
            prefix: the tokens before the turn.
        """
        if self._reader is None:
            return {"role": "assistant", "content": text}, None
        return self._reader.read(text, ids, prefix)

    def _written(self, messages: list[Message], opens: bool = False) -> str:
        options = {"tokenize": False, "add_generation_prompt": opens, **self._options}
        try:
            return str(self.tokenizer.apply_chat_template(messages, **options))
        except Exception as error:  # a template may raise anything
            raise ValueError(
                "The chat template fails on a conversation with several turns or tools: "
                f"{error}. Use a model with another chat template. If the cause is the tools, you "
                "can instead describe them in the prompt and parse the calls in the environment's "
                "`step`."
            ) from error

    def _find_template(self) -> None:
        """Select a form of the chat template that keeps turns as they were sampled.

        The template itself is tried first, then TRL's training variant of it, and finally, if there
        are tools, the template with turns that contain only calls (see `BareCalls`). This last form
        is not tried if an option of the template would keep turns, if TRL cannot parse the
        template's calls, or if the template keeps text before a call.

        The variant is stored in `_options["chat_template"]`, and the description of the last form
        in `_bare`. Neither is set if the template itself keeps turns.

        Raises:
            ValueError: if no tried form keeps turns. The message gives the reason, and names the
                option that would keep turns, if there is one.
        """
        shapes: list[Shape] = [USER] * self._answers_texts
        shapes += [(("tool", tool.__name__),) for tool in self.tools]
        refusal = self._refusal(shapes)
        variant = training_template(self.tokenizer) if refusal is not None else None
        if variant is not None:
            self._options["chat_template"] = variant
            refusal = self._refusal(shapes)
        if refusal is None:
            return
        self._options.pop("chat_template", None)
        if isinstance(refusal, EarlierTurnChanged):
            option = self._option_that_keeps_turns(shapes)
            if option:
                raise EarlierTurnChanged(refusal.sampled, refusal.written, option)
        if not self.tools:
            raise refusal
        try:
            learn_to_parse(self.tokenizer)
        except ValueError:  # TRL does not know the template
            raise refusal from None
        call = call_of(self.tools[0].__name__)
        if writes_text_before(self._written, call):
            raise refusal
        self._bare = bare_calls(self._written, call, self.tokenizer, self.ends)
        self._read_template(shapes)

    def _option_that_keeps_turns(self, shapes: list[Shape]) -> str:
        """Return a template option that keeps turns, such as `preserve_thinking: true`.

        If there is none, return an empty string.
        """
        options = self._options
        try:
            for name, value in options_of_thoughts(str(self.tokenizer.chat_template)):
                self._options = {**options, name: value}
                if self._refusal(shapes) is None:
                    return f"{name}: {str(value).lower()}"
        finally:
            self._options = options
        return ""

    def _refusal(self, shapes: list[Shape]) -> ValueError | None:
        """Return why the template cannot be used for answers of these shapes; `None` if it can be.

        The template is rendered with the current options, and the tokens that it writes around the
        answers are stored in `_around`.
        """
        try:
            self._read_template(shapes)
        except ValueError as error:
            return error
        return None

    def _read_template(self, shapes: list[Shape]) -> None:
        self._around.clear()
        self._result_is_json = bool(self.tools) and self._writes_json()
        for shape in shapes:
            self._of_shape(shape)

    def _writes_json(self) -> bool:
        """Return whether the template renders the result of a tool as a JSON string.

        Raises:
            ValueError: if the template renders the result neither unchanged nor as JSON.
        """
        name = self.tools[0].__name__
        result = {"role": "tool", "name": name, "content": RESULT}
        turn = bare_turn([call_of(name)], "")
        text = self._written([QUESTION, turn, result], opens=True)
        if RESULT in text:
            return False
        if json.dumps(RESULT, ensure_ascii=False) in text:
            return True
        raise ValueError(
            "This chat template changes or drops tool results (messages with the role `tool`), so "
            "the model would not see them as they are. Use a model with another chat template, or "
            "describe the tools in the prompt and parse the calls in the environment's `step`."
        )

    def _of_shape(self, shape: Shape) -> list[list[int]]:
        """Return the tokens that the template writes around the messages of an answer.

        Args:
            shape: the (role, name) of each message of the answer.

        Returns:
            The token ids before the first message, and the ids after each message. The ids after
            the last message include the header of the next turn.

        Raises:
            ValueError: if the template fails, changes the turn before the answer, or changes,
                repeats or drops a message of the answer.
        """
        if shape not in self._around:
            after = self._after_a_turn(shape)
            quote = '"' if shape[0][0] == "tool" and self._result_is_json else ""
            parts = []
            for number in range(len(shape)):
                before, answer, after = after.partition(f"{quote}{ANSWER} {number}{quote}")
                if answer:
                    parts.append(before)
            if len(parts) < len(shape) or ANSWER in after:
                raise ValueError(CHANGES_ANSWERS)
            self._around[shape] = [self.tokens_of(part) for part in (*parts, after)]
        return self._around[shape]

    def _after_a_turn(self, shape: Shape) -> str:
        """Return the rendered text that follows a turn's end token if the answer has this shape.

        The text consists of the answer's messages, whose contents are `ANSWER` followed by a
        number, and the header of the next turn.

        Raises:
            ValueError: if the template fails, or changes the turn or the text before it.
        """
        answer: list[Message] = []
        calls: list[Message] = []
        for number, (role, name) in enumerate(shape):
            message = {"role": role, "content": f"{ANSWER} {number}"}
            if name:
                message["name"] = name
            answer.append(message)
            if role == "tool":
                calls.append(call_of(name))
        if calls and self._bare is not None:
            end = str(self.tokenizer.decode([self._bare.end]))
            return self._bare.after_a_call(calls, answer, end, self._answers_texts)
        return after_turn(self._written, str(self.tokenizer.decode([self.end])), calls, answer)

    def _find_opening_of_call(self) -> str | None:
        """Return the text that begins a tool call, such as `<tool_call>`, or `None` if unknown."""
        turn = {"role": "assistant", "content": ""}
        calling_turn = {**turn, "tool_calls": [call_of("called")]}
        without_call = self._written([QUESTION, turn])
        with_call = self._written([QUESTION, calling_turn])
        first_difference = 0
        for character, expected in zip(with_call, without_call, strict=False):
            if character != expected:
                break
            first_difference += 1
        before_call = with_call[:first_difference]
        start_of_word = max(before_call.rfind(mark) for mark in " \n>") + 1
        before_name, _, _ = with_call[start_of_word:].partition("called")
        words = before_name.split()
        return words[0] if words else None


def trained_turns(chat_template: str | dict[str, str] | None) -> str:
    """Return a line that says which tokens are trained on, and which template renders the others.

    Args:
        chat_template: the tokenizer's chat template, which `TurnTokens` may have replaced.
    """
    if is_training_template(chat_template):
        return (
            "the model's turns are trained on exactly as sampled; all other messages are rendered "
            "with TRL's training variant of the chat template, which keeps earlier turns and is "
            "saved with the model"
        )
    return (
        "the model's turns are trained on exactly as sampled; all other messages are rendered with "
        "the model's own chat template"
    )


def call_of(name: str) -> Message:
    """Return a call of the tool `name` without arguments, as chat templates expect it."""
    return {"type": "function", "function": {"name": name, "arguments": {}}}
