"""The tokens that a chat template puts between two turns of the model.

A turn keeps the tokens that were sampled: it is never decoded and tokenized again.

A template writes a conversation like this, where `/` is a line break and the parts between turn and
answer come from the template::

    ... <|im_start|>assistant / 17 <|im_end|>     the turn "17"
    / <|im_start|>user / low <|im_end|> /         the answer "low"
    <|im_start|>assistant / 24 <|im_end|>         the turn "24"
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.seams.chat import (
    is_training_template,
    learn_to_parse,
    parse,
    training_template,
)

QUESTION = "a question"
ANSWER = "an answer of the environment"
OPENING = "the text with which an environment opens"
TURN = "a turn"
THOUGHT = "<think>\na thought\n</think>\n\n"  # some templates remove thoughts from earlier turns
MAX_DEPTH = 32  # deepest nesting of the arguments of a call
PARSE_SECONDS = 5.0  # time limit for parsing the calls of a turn
Message = dict[str, Any]
Shape = tuple[tuple[str, str], ...]  # role and name of each message of an answer
USER = (("user", ""),)


class TurnTokens:
    """Converts prompts and answers to tokens with the chat template, and sampled turns to messages.

    A template that changes earlier turns is replaced by TRL's training variant of it, if there is
    one. The tokenizer then has the variant, which is saved with the model: who serves the model
    writes conversations as in training.

    Args:
        tokenizer: the model's tokenizer.
        ends: tokens that end a turn of the model.
        template_options: the `chat_template_kwargs`.
        tools: functions that the prompt describes and the model may call.
        answers_texts: whether the environment answers turns without calls.

    Raises:
        ValueError: if there is no template, or if it fails, changes earlier turns or answers, ends
            turns with a token that is not one of `ends`, or does not describe the tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int],
        template_options: dict[str, Any] | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        answers_texts: bool = True,
    ):
        if not tokenizer.chat_template:
            raise ValueError(
                "Episodes need a chat template, but the tokenizer has none. Use an instruct model, "
                "or put a chat_template.jinja next to the tokenizer."
            )
        self.tokenizer = tokenizer
        self.ends = frozenset(ends)
        self.tools = list(tools)
        self._options: dict[str, Any] = dict(template_options or {})
        if tools:
            self._options["tools"] = self.tools
        self._around: dict[Shape, list[list[int]]] = {}
        self.end = self._end_of_turn()
        shapes: list[Shape] = [USER] * (answers_texts or not tools)
        shapes += [(("tool", tool.__name__),) for tool in tools]
        try:
            self._read_template(shapes)
        except ValueError:
            variant = training_template(tokenizer)
            if variant is None:
                raise
            self._options["chat_template"] = variant
            self._read_template(shapes)
        prompt = self._written([{"role": "user", "content": QUESTION}])
        for tool in tools:
            if tool.__name__ not in prompt:
                raise ValueError(
                    f"This chat template does not describe tools: {tool.__name__} is missing from "
                    "the prompt. Use a model whose chat template supports tools."
                )
        self._opening_of_call: str | None = None
        if tools:
            self._opening_of_call = self._find_opening_of_call()
            learn_to_parse(tokenizer)
        variant = self._options.pop("chat_template", None)
        if variant is not None:
            with suppress(ValueError):  # TRL knows how to parse the original, not the variant
                learn_to_parse(tokenizer)
            tokenizer.chat_template = variant

    def prompt(self, messages: list[Message], opening: str = "") -> list[int]:
        """Return the tokens of a conversation for the model to answer.

        Args:
            messages: the conversation.
            opening: the end of the last message, which an environment wrote. A special token
                spelled in it is tokenized as plain text, as in an answer.

        Raises:
            ValueError: if `opening` spells a special token and the template does not write
                `opening` unchanged.
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
        """Return the tokens of an answer and of the template around it.

        Args:
            messages: the answer as chat messages.
            ended: whether the model's turn has its end token; otherwise the end token is added.

        Raises:
            ValueError: if the template fails on such an answer, or changes it.
        """
        shape = []
        for message in messages:
            shape.append((message["role"], message.get("name", "")))
        before, *after_each = self._of_shape(tuple(shape))
        ids = [] if ended else [self.end]
        ids += before
        for message, after in zip(messages, after_each, strict=True):
            ids += self.plain_tokens(message["content"])
            ids += after
        return ids

    def as_written(self, ids: list[int]) -> dict[str, Any]:
        """Return a turn as it was sampled, for a log.

        `raw` is its text with special tokens and the markup of calls. `raw_ids` are its tokens,
        only if `raw` would be tokenized otherwise.
        """
        text = str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        if self.tokens_of(text) == ids:
            return {"raw": text}
        return {"raw": text, "raw_ids": ids}

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text that the template or the model wrote.

        Special tokens are included.
        """
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain_tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, without recognizing special tokens in it."""
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])

    def _spells_special_token(self, content: str, length: int) -> bool:
        """Return whether a special token ends in the last `length` characters of `content`."""
        begin = len(content) - length
        for token in self.tokenizer.added_tokens_decoder.values():
            if not token.special:
                continue
            first = max(0, begin - len(token.content) + 1)
            if content.find(token.content, first) >= 0:
                return True
        return False

    def _around_opening(self, messages: list[Message], opening: str) -> tuple[str, str, str]:
        """Return what the template writes before `opening`, for `opening`, and after it.

        `opening` is the end of the last message.

        Raises:
            ValueError: if the template changes more than the whitespace around `opening`.
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
                "The text that `reset` returned contains a special token, which this chat template "
                "does not keep as plain text, because it changes the end of the last message. "
                "Return a text without the token."
            )
        return before, middle, after

    def message(
        self,
        text: str,
        ids: list[int],
        prefix: list[int],
    ) -> tuple[Message, bool]:
        """Return a turn as a chat message, and whether it has a call that cannot be parsed.

        A turn that the parser fails on becomes a message with the text alone.

        Args:
            text: the turn without special tokens.
            ids: the tokens of the turn.
            prefix: the tokens before it.
        """
        message = {"role": "assistant", "content": text}
        if not self.tools:
            return message, False
        # Only the template's header of the turn matters; some parsers are slow on longer prefixes.
        header = len(prefix)
        while header > 0 and prefix[header - 1] not in self.ends:
            header -= 1
        try:
            with deadline(PARSE_SECONDS):
                parsed = parse(self.tokenizer, ids, prefix[header:], self.tools)
                message = plain_json(parsed)
        except (Exception, TooLate):  # a parser may raise anything on a model's text
            pass
        if message.get("tool_calls") or self._opening_of_call is None:
            return message, False
        _, _, answer = str(self.tokenizer.decode(ids)).rpartition("</think>")
        for line in answer.splitlines():
            if line.lstrip().startswith(self._opening_of_call):
                return message, True
        return message, False

    def _written(self, messages: list[Message], opens: bool = False) -> str:
        options = {"tokenize": False, "add_generation_prompt": opens, **self._options}
        try:
            return str(self.tokenizer.apply_chat_template(messages, **options))
        except Exception as error:  # a template may raise anything
            raise ValueError(
                f"The chat template fails on a conversation of several turns or with tools: {error}"
            ) from error

    def _end_of_turn(self) -> int:
        """Return the token with which the template ends a turn of the model.

        Raises:
            ValueError: if the template does not end a turn with one of the model's end tokens.
        """
        question = {"role": "user", "content": QUESTION}
        turn = {"role": "assistant", "content": TURN}
        conversation = self._written([question, turn, question])
        _, _, after = conversation.partition(TURN)
        tokens = self.tokens_of(after)
        if tokens and tokens[0] in self.ends:
            return tokens[0]
        if not tokens or tokens[0] not in self.tokenizer.added_tokens_decoder:
            raise ValueError(
                "The chat template does not end a turn with a token of its own, so the model "
                "cannot be trained on several turns. Use a model whose chat template does."
            )
        end = str(self.tokenizer.decode(tokens[:1]))
        raise ValueError(
            f"The chat template ends a turn with {end!r}, which is not one of the model's end "
            "tokens. In a local copy of the model, set eos_token in tokenizer_config.json to "
            f"{end!r}."
        )

    def _read_template(self, shapes: list[Shape]) -> None:
        self._around.clear()
        for shape in shapes:
            self._of_shape(shape)

    def _of_shape(self, shape: Shape) -> list[list[int]]:
        """Return the template's tokens before, between and after the messages of an answer.

        The first list stands before the first message, and one list follows each message.

        Raises:
            ValueError: if the template changes, repeats or drops a message of such an answer.
        """
        if shape not in self._around:
            after = self._after_a_turn(shape)
            parts = []
            for number in range(len(shape)):
                before, answer, after = after.partition(f"{ANSWER} {number}")
                if answer:
                    parts.append(before)
            if len(parts) < len(shape) or ANSWER in after:
                raise ValueError(
                    "This chat template changes, repeats or drops answers of an environment, so "
                    "the model would not read them as they are. Use a model with another chat "
                    "template."
                )
            self._around[shape] = [self.tokens_of(part) for part in (*parts, after)]
        return self._around[shape]

    def _after_a_turn(self, shape: Shape) -> str:
        """Return what the template writes after a turn's end token for an answer of this shape.

        The text includes the answer's messages, `ANSWER` with a number, and the header of the next
        turn.

        Raises:
            ValueError: if the template changes the turn.
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
        question: Message = {"role": "user", "content": QUESTION}
        prompt = self._written([question], opens=True)
        thought = "" if prompt.rstrip().endswith("</think>") else THOUGHT
        turn: Message = {"role": "assistant", "content": thought + TURN}
        if calls:
            turn["tool_calls"] = calls
        if prompt.rstrip().endswith("<think>"):
            thought = thought.removeprefix("<think>\n")
        end = str(self.tokenizer.decode([self.end]))
        until_turn, _, _ = self._written([question, turn]).rpartition(end)
        text = self._written([question, turn, *answer], opens=True)
        starts_as_sampled = text.startswith(prompt + thought + TURN)
        if not until_turn or not starts_as_sampled or not text.startswith(until_turn + end):
            raise ValueError(
                "This chat template changes earlier turns, for example by dropping their thoughts, "
                "so the model would not read the tokens that it sampled. Use a model whose "
                "template keeps earlier turns unchanged, or set an option of the template that "
                "does so in chat_template_kwargs."
            )
        return text.removeprefix(until_turn + end)

    def _find_opening_of_call(self) -> str | None:
        """Return the text that begins a tool call, such as `<tool_call>`; `None` if unknown."""
        question = {"role": "user", "content": QUESTION}
        turn = {"role": "assistant", "content": ""}
        calling_turn = {**turn, "tool_calls": [call_of("called")]}
        without_call = self._written([question, turn])
        with_call = self._written([question, calling_turn])
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
    """Describe the tokens of an episode that are trained on, and what writes the others.

    Args:
        chat_template: the template of the tokenizer of a `TurnTokens`.
    """
    if is_training_template(chat_template):
        return (
            "those of the model are trained on as sampled; the others are written by TRL's "
            "training variant of the chat template, which keeps earlier turns and is saved with "
            "the model"
        )
    return (
        "those of the model are trained on as sampled; the others are written by the model's own "
        "chat template"
    )


def plain_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a copy of parsed JSON in which lone surrogates are replaced by `?`.

    Raises:
        ValueError: if it is nested deeper than `depth`.
    """
    if not depth:
        raise ValueError("the call is nested too deeply")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            plain[plain_json(key)] = plain_json(item, depth - 1)
        return plain
    if isinstance(value, list):
        return [plain_json(item, depth - 1) for item in value]
    return value


def call_of(name: str) -> Message:
    """Return a tool call without arguments, in the form that chat templates read."""
    return {"type": "function", "function": {"name": name, "arguments": {}}}
