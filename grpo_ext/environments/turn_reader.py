"""Parse a sampled turn into a chat message, and decide whether its tool calls are valid."""

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

MAX_DEPTH = 32  # maximum nesting of the arguments of a call
PARSE_SECONDS = 5.0  # time limit for parsing the calls of a turn


@dataclass(frozen=True)
class TurnReader:
    """Parses the turns of a model that may call tools.

    Args:
        tokenizer: the model's tokenizer.
        ends: the ids of the tokens that end a turn.
        tools: the functions that a turn may call.
        opening: the text that begins a call; `None` if unknown.
        end: the id of the token that ends a turn without calls.
        bare: describes turns with calls if the template does not keep text before a call; otherwise
            `None`.
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
        """Return a turn as a chat message, and an error message if its call is invalid.

        A call is invalid if it cannot be parsed. If `bare` is set, a call is also invalid if the
        template would not render the turn as it was sampled. The chat message of a turn with an
        invalid call has no tool calls.

        The error message is the reply to the turn. It is `None` if the turn has no calls or only
        valid ones. It is also `None` if the template cannot render such a reply; the episode then
        ends.

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
        """Return the error text for a call that cannot be parsed.

        The text is `INCOMPLETE` if the turn was cut off, and `UNREADABLE` otherwise.
        """
        stopped = self.stops is not None and self.stops.end_with(ids)
        if stopped or (ids and ids[-1] in self.ends):
            return UNREADABLE
        return INCOMPLETE

    def _parsed(self, text: str, ids: list[int], prefix: list[int]) -> Message:
        """Parse a turn; if the parser fails or is too slow, return a message with only the text.

        The arguments are those of `read`.
        """
        try:
            with deadline(PARSE_SECONDS):
                return plain_json(parse(self.tokenizer, ids, prefix, list(self.tools)))
        except (Exception, TooLate):  # a parser may raise anything on a model's text
            return {"role": "assistant", "content": text}

    def _with_end_of_call(self, ids: list[int]) -> list[int]:
        """Return the tokens of a turn, adding the end token for calls if the turn has no end token.

        Without that token, the parser would accept a call that was cut off before its last brace.
        Nothing is added if `bare` is `None`.
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
        """Return the chat message for a turn with an invalid call, and the error message in reply.

        The reply has the role `tool`. However, a template with a separate end token for calls
        renders such a message only after that token. If the turn ends with the end token for turns
        without calls, the reply therefore has the role `user`; if the environment does not answer
        turns without calls, there is no reply (`None`), and the episode ends.

        Args:
            text: the turn without special tokens.
            message: the turn as parsed.
            ids: the tokens of the turn.
            error: the text of the error message.
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
        """Whether turns with calls have a different end token than turns without calls."""
        return self.bare is not None and self.bare.end != self.end

    def _begins_a_call(self, ids: list[int]) -> bool:
        """Return whether a turn in which no call was parsed begins a call or ends like one."""
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
        """Return whether the template renders a turn with calls as it was sampled.

        Return `False` if there is text besides the calls, or if the template cannot render the
        turn. Only added tokens, such as special tokens, are compared, so arguments may differ in
        whitespace and order. The token that opens a thought may be the last added token in `prefix`
        instead of the first one in `ids`.

        Args:
            bare: describes how the template renders turns with calls.
            message: the turn as parsed.
            ids: the tokens of the turn.
            prefix: the tokens of the header before the turn.
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
        """Return the tokens in `ids` that were added to the vocabulary, such as special tokens."""
        added = self.tokenizer.added_tokens_decoder
        return [token for token in ids if token in added]


def plain_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a copy of parsed JSON in which lone surrogates are replaced by `?`.

    Raises:
        ValueError: if `value` has more than `depth` nested levels.
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
