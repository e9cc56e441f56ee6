"""The tokens between two turns of the model. Nothing that was sampled is ever decoded and tokenised
again.

A template writes a conversation like this::

    ... <|im_start|>assistant / 17 <|im_end|> / <|im_start|>user / low <|im_end|> /
    <|im_start|>assistant / 24 <|im_end|>
                               turn            around            answer  around                           turn
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.deadline import TooLate, deadline
from grpo_ext.seams.chat import learn_to_parse, parse, training_template

QUESTION = "a question"
ANSWER = "an answer of the environment"
OPENING = "the text with which an environment opens"
TURN = "a turn"
THOUGHT = "<think>\na thought\n</think>\n\n"  # some templates take thoughts out of earlier turns
REWRITES = (
    "This chat template writes an earlier turn in another way than it was sampled "
    "(it drops thoughts, or opens a turn with more than it keeps). Give the tokenizer a "
    "chat_template that leaves earlier turns as they are, or set what it takes in "
    "chat_template_kwargs."
)
MOST_DEPTH = 32  # deepest nesting of the arguments of a call
PARSE_SECONDS = 5.0
Message = dict[str, Any]
Shape = tuple[tuple[str, str], ...]  # role and name of each message of an answer
USER = (("user", ""),)


class TurnTokens:
    """Turns prompts and answers into tokens as the chat template does, and a turn's tokens into a
    message.

    If the chat template changes earlier turns, TRL's training variant of the template is used, if
    there is one.

    Args:
        tokenizer: the model's tokenizer.
        ends: tokens that end a turn of the model.
        template_options: `chat_template_kwargs`.
        tools: functions that the prompt describes and the model may call.
        answers_texts: whether turns without calls get an answer.

    Raises:
        ValueError: if there is no template, if it changes earlier turns, or if it does not describe
            the tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        ends: Collection[int],
        template_options: Message | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        answers_texts: bool = True,
    ):
        if not tokenizer.chat_template:
            raise ValueError(
                "Episodes need a tokenizer with a chat template, and this one has none."
            )
        self.tokenizer = tokenizer
        self.ends = frozenset(ends)
        self.tools = list(tools)
        self._options = {**(template_options or {}), **({"tools": self.tools} if tools else {})}
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
        asked = self._written([{"role": "user", "content": QUESTION}])
        if missing := [tool.__name__ for tool in tools if tool.__name__ not in asked]:
            raise ValueError(
                f"This chat template does not describe tools: {missing[0]} is not in the prompt."
            )
        self._opening_of_call = self._find_opening_of_call() if tools else None
        if tools:
            learn_to_parse(tokenizer)

    def prompt(self, messages: list[Message], opening: str = "") -> list[int]:
        """Return the tokens of a conversation that the model answers next.

        `opening` is the end of the last message, which an environment wrote. Special tokens that it
        spells stay text, as in an answer. `ValueError` if the template does not write that text as
        it is.
        """
        if opening and self._spells_special_token(messages[-1]["content"], len(opening)):
            before, middle, after = self._around_opening(messages, opening)
            return [
                *self.tokenizer(before, add_special_tokens=False)["input_ids"],
                *self._plain_tokens(middle),
                *self.tokenizer(after, add_special_tokens=False)["input_ids"],
            ]
        encoded: Any = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, **self._options
        )
        return list(encoded["input_ids"])

    def answer(self, messages: list[Message], ended: bool) -> list[int]:
        """Return the tokens of an answer and of the template around it.

        Args:
            messages: the answer.
            ended: whether the model's turn has its end token.
        """
        shape = tuple((message["role"], message.get("name", "")) for message in messages)
        first, *others = self._of_shape(shape)
        ids: list[int] = []
        if not ended:
            ids.append(self.end)
        ids += first
        for message, after in zip(messages, others, strict=True):
            ids += self._plain_tokens(message["content"])
            ids += after
        return ids

    def _plain_tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, none of which is special."""
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(encoded["input_ids"])

    def _spells_special_token(self, content: str, length: int) -> bool:
        """Whether a special token is written in the last `length` characters of a message, or
        reaches into them.
        """
        begin = len(content) - length
        for token in self.tokenizer.added_tokens_decoder.values():
            if not token.special:
                continue
            first = max(0, begin - len(token.content) + 1)
            if content.find(token.content, first) >= 0:
                return True
        return False

    def _around_opening(self, messages: list[Message], opening: str) -> tuple[str, str, str]:
        """Return what the template writes before the end `opening` of the last message, that text,
        and what follows.
        """
        *others, last = messages
        begin = last["content"].removesuffix(opening)
        marked = self._written([*others, {**last, "content": begin + OPENING}], opens=True)
        whole = self._written(messages, opens=True)
        before, _, after = marked.rpartition(OPENING)
        middle = whole[len(before) : len(whole) - len(after)]
        kept = whole == before + middle + after and middle.strip() == opening.strip()
        if not kept:
            raise ValueError(
                "The text of reset spells a special token, and this chat template "
                "does not write the end of the last message as it is, so the token cannot be kept "
                "out of the prompt."
            )
        return before, middle, after

    def message(self, text: str, ids: list[int], prefix: list[int]) -> tuple[Message, bool]:
        """Return a turn of the model as a chat message, and whether it has a call that cannot be
        read.

        `text` is the turn without special tokens, `ids` are its tokens, and `prefix` the tokens
        before it.
        """
        plain = {"role": "assistant", "content": text}
        if not self.tools:
            return plain, False
        # only the template's header of the turn matters, and some parsers take long for more
        begins = next((i for i in range(len(prefix), 0, -1) if prefix[i - 1] in self.ends), 0)
        try:
            with deadline(PARSE_SECONDS):
                found = _plain(parse(self.tokenizer, ids, prefix[begins:], self.tools))
        except (Exception, TooLate):  # a parser may raise anything on a model's text
            found = plain
        if found.get("tool_calls") or self._opening_of_call is None:
            return found, False
        answer = str(self.tokenizer.decode(ids)).rpartition("</think>")[2]
        return found, any(
            line.lstrip().startswith(self._opening_of_call) for line in answer.splitlines()
        )

    def _written(self, messages: list[Message], opens: bool = False) -> str:
        options = {"tokenize": False, "add_generation_prompt": opens, **self._options}
        try:
            return str(self.tokenizer.apply_chat_template(messages, **options))
        except Exception as error:  # a template may raise anything
            raise ValueError(f"The chat template refuses such a conversation: {error}") from error

    def _end_of_turn(self) -> int:
        """Return the token with which the template ends a turn of the model."""
        asked = {"role": "user", "content": QUESTION}
        turn = {"role": "assistant", "content": TURN}
        after = self._written([asked, turn, asked]).partition(TURN)[2]
        first = (self.tokenizer(after, add_special_tokens=False)["input_ids"] or [-1])[0]
        if first not in self.ends:
            end = (after.split() or [after])[0]
            raise ValueError(
                f"The chat template ends a turn with {end!r}, which is not an end "
                "token of the model: set eos_token in the model's tokenizer_config.json to it."
            )
        return int(first)

    def _read_template(self, shapes: list[Shape]) -> None:
        self._around.clear()
        for shape in shapes:
            self._of_shape(shape)

    def _of_shape(self, shape: Shape) -> list[list[int]]:
        """Return the tokens before the first message of an answer, between its messages, and after
        them.
        """
        if shape not in self._around:
            whole = self._after_a_turn(shape)
            parts = []
            for number in range(len(shape)):
                before, found, whole = whole.partition(f"{ANSWER} {number}")
                parts += [before] if found else []
            if len(parts) < len(shape) or ANSWER in whole:
                raise ValueError("This chat template does not write each answer once, as it is.")
            self._around[shape] = [
                self.tokenizer(p, add_special_tokens=False)["input_ids"] for p in [*parts, whole]
            ]
        return self._around[shape]

    def _after_a_turn(self, shape: Shape) -> str:
        """Return what the template writes after the end token of a turn if an answer of this shape
        follows.
        """
        said: list[Message] = [
            {"role": role, "content": f"{ANSWER} {n}"} for n, (role, _) in enumerate(shape)
        ]
        for message, (_, name) in zip(said, shape, strict=True):
            message.update({"name": name} if name else {})
        asked: Message = {"role": "user", "content": QUESTION}
        opened = self._written([asked], opens=True)
        thought = "" if opened.rstrip().endswith("</think>") else THOUGHT
        written = (
            thought.removeprefix("<think>\n") if opened.rstrip().endswith("<think>") else thought
        )
        turn: Message = {"role": "assistant", "content": thought + TURN}
        if calls := [_call(name) for role, name in shape if role == "tool"]:
            turn["tool_calls"] = calls
        end = str(self.tokenizer.decode([self.end]))
        turn_alone = self._written([asked, turn]).rpartition(end)[0]
        whole = self._written([asked, turn, *said], opens=True)
        if not (
            turn_alone
            and whole.startswith(opened + written + TURN)
            and whole.startswith(turn_alone + end)
        ):
            raise ValueError(REWRITES)
        return whole[len(turn_alone + end) :]

    def _find_opening_of_call(self) -> str | None:
        """Return the text that a call of a tool begins with, such as `<tool_call>`."""
        question = {"role": "user", "content": QUESTION}
        turn = {"role": "assistant", "content": ""}
        plain = self._written([question, turn])
        calling = self._written([question, {**turn, "tool_calls": [_call("called")]}])
        same = 0  # length of the common beginning
        while plain[same : same + 1] == calling[same : same + 1] != "":
            same += 1
        begin = max(calling.rfind(mark, 0, same) for mark in " \n>") + 1  # where the word begins
        words = calling[begin:].partition("called")[0].split()
        return words[0] if words else None


def _plain(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return parsed JSON without lone surrogates; `ValueError` if it is nested deeper than
    `depth`.
    """
    if not depth:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(item, depth - 1) for key, item in value.items()}
    return [_plain(item, depth - 1) for item in value] if isinstance(value, list) else value


def _call(name: str) -> Message:
    return {"type": "function", "function": {"name": name, "arguments": {}}}
