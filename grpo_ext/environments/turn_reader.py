"""Read a sampled turn as a chat message, and decide whether its calls can be made."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_ext.common.stop_strings import StopStrings
from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.environments.bare_calls import (
    BUILT_IN,
    CONTENT_TYPE,
    INCOMPLETE,
    NOT_ALONE,
    QUESTION,
    UNREADABLE,
    BareCalls,
    Message,
)
from grpo_ext.seams.chat import parse

MAX_DEPTH = 32  # deepest nesting of the arguments of a call
PARSE_SECONDS = 5.0  # time limit for parsing the calls of a turn


@dataclass(frozen=True)
class TurnReader:
    """Reads the turns of a model that may call tools.

    Args:
        tokenizer: the model's tokenizer.
        ends: tokens that end a turn of the model.
        tools: the functions that a turn may call.
        opening: the text that begins a call; `None` if unknown.
        end: the token that ends a turn without calls.
        bare: describes how the template writes a turn with calls if it allows no text before them;
            otherwise `None`.
        answers_texts: whether the environment answers turns without calls.
        stops: finds the stop strings, which also end a turn; `None` if there are none.
    """

    tokenizer: PreTrainedTokenizerBase
    ends: Collection[int]
    tools: Sequence[Callable[..., Any]]
    opening: str | None
    end: int
    bare: BareCalls | None
    answers_texts: bool
    stops: StopStrings | None = None

    def read(self, text: str, ids: list[int], prefix: list[int]) -> tuple[Message, Message | None]:
        """Return a turn as a chat message, and the error that answers it if its call is invalid.

        A call is invalid if it cannot be parsed, or if the template would not write the turn as it
        was sampled. The message of such a turn contains only its text. The second value is `None`
        for a turn with valid calls or without calls, and for an invalid call that ends the episode
        (see `_faulty`).

        Args:
            text: the turn without special tokens.
            ids: the tokens of the turn.
            prefix: the tokens before the turn.
        """
        # Only the template's header of the turn matters; some parsers are slow on longer prefixes.
        header = len(prefix)
        while header > 0 and prefix[header - 1] not in self.ends:
            header -= 1
        prefix = prefix[header:]
        as_call = self._with_end_of_call(ids)
        message = self._parsed(text, as_call, prefix)
        if as_call != ids and not message.get("tool_calls"):
            message = self._parsed(text, ids, prefix)
            if message.get("tool_calls"):
                return self._faulty(text, message, ids, self._fault_of(ids))
        if message.get("tool_calls"):
            if self.bare is None or self._writes_back(self.bare, message, ids, prefix):
                return message, None
            return self._faulty(text, message, ids, NOT_ALONE)
        if self._begins_a_call(ids):
            return self._faulty(text, message, ids, self._fault_of(ids))
        return message, None

    def _fault_of(self, ids: list[int]) -> str:
        """Return the error for a call that cannot be read: incomplete if cut off, else invalid."""
        stopped = self.stops is not None and self.stops.end_with(ids)
        if stopped or (ids and ids[-1] in self.ends):
            return UNREADABLE
        return INCOMPLETE

    def _parsed(self, text: str, ids: list[int], prefix: list[int]) -> Message:
        """Return a turn as parsed; if the parser fails or is too slow, a message with the text."""
        try:
            with deadline(PARSE_SECONDS):
                return plain_json(parse(self.tokenizer, ids, prefix, list(self.tools)))
        except (Exception, TooLate):  # a parser may raise anything on a model's text
            return {"role": "assistant", "content": text}

    def _with_end_of_call(self, ids: list[int]) -> list[int]:
        """Return a turn, with the end token of a call added if the turn was cut off.

        Without that token, the parser would complete a call that was cut off before its last brace.
        Nothing is added if the template has no bare calls.
        """
        if self.bare is None or (ids and ids[-1] in self.ends):
            return ids
        return [*ids, self.bare.end]

    def _faulty(
        self,
        text: str,
        message: Message,
        ids: list[int],
        error: str,
    ) -> tuple[Message, Message | None]:
        """Return a turn with an invalid call as a message, and the message that answers it.

        The answer has the role `tool`. A template with a separate end token for calls writes such a
        message only after that token. If the turn has the other end token, the answer has the role
        `user`; if the environment does not answer turns without calls, it is `None`, and the
        episode ends.

        Args:
            text: the turn without special tokens.
            message: the turn as parsed.
            ids: the tokens of the turn.
            error: the error that the model reads.
        """
        if message.get("tool_calls"):
            message = {"role": "assistant", "content": text}
        if self._marks_calls and ids[-1:] == [self.end]:
            if not self.answers_texts:
                return message, None
            return message, {"role": "user", "content": error}
        return message, {"role": "tool", "name": self.tools[0].__name__, "content": error}

    @property
    def _marks_calls(self) -> bool:
        """True if turns with calls have a different end token."""
        return self.bare is not None and self.bare.end != self.end

    def _begins_a_call(self, ids: list[int]) -> bool:
        """Return whether a turn that was parsed without a call begins one, or ends like a call."""
        if self.bare is not None and self._marks_calls:
            ends_as_call = ids[-1:] == [self.bare.end]
            return ends_as_call or self.bare.opening in str(self.tokenizer.decode(ids))
        if self.opening is None:
            return False
        is_bare = self.bare is not None
        if is_bare and self.tokenizer.convert_tokens_to_ids(BUILT_IN) in ids:
            return True
        written = str(self.tokenizer.decode(ids, skip_special_tokens=is_bare))
        _, _, answer = written.rpartition("</think>")
        return any(line.lstrip().startswith(self.opening) for line in answer.splitlines())

    def _writes_back(
        self, bare: BareCalls, message: Message, ids: list[int], prefix: list[int]
    ) -> bool:
        """Return whether the template writes a turn with calls as it was sampled.

        Only the added tokens are compared, so arguments may differ in spaces and order. A turn with
        text before its calls is not written as sampled. The template may have opened a thought
        before the turn.
        """
        if message["content"].strip():
            return False
        try:
            text = bare.written([QUESTION, message])
        except ValueError:  # some templates allow only one call, or only objects as arguments
            return False
        prompt = self._added(self._tokens_of(bare.written([QUESTION], opens=True)))
        written = self._added(self._tokens_of(text.rstrip()))[len(prompt) :]
        content_type = self.tokenizer.convert_tokens_to_ids(CONTENT_TYPE)
        sampled = self._added(self._with_end_of_call(ids))
        sampled = [token for token in sampled if token != content_type]
        opened = self._added(prefix)[-1:]
        return written in (sampled, opened + sampled)

    def _tokens_of(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _added(self, ids: list[int]) -> list[int]:
        """Return the tokens that were added to the vocabulary, such as special tokens."""
        added = self.tokenizer.added_tokens_decoder
        return [token for token in ids if token in added]


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
