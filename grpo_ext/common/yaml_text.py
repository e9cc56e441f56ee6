"""Parse untrusted YAML within limits, with errors that name the line and a remedy.

Also format single values as YAML.
"""

import json
from contextlib import suppress
from typing import Any

import yaml

from grpo_ext.common.foreign_files import MOST_LEVELS

INTEGER = "tag:yaml.org,2002:int"
MOST_DIGITS = 4300  # Python's limit for an integer; YAML's base 60 takes quadratic time
KEY_TYPES = (str, int, float, bool, type(None))  # the key types that `json.dumps` accepts


class YamlFault(ValueError):
    """Raised if a YAML document has an error.

    Args:
        reason: what is wrong, without excerpts from the document.
        line: the line of the error, counted from 1.
        remedy: how to correct it.
    """

    def __init__(self, reason: str, line: int, remedy: str):
        self.reason = reason
        self.line = line
        self.remedy = remedy
        super().__init__(f"line {line}: {self.advice}")

    @property
    def advice(self) -> str:
        """The message without the line number: what is wrong and how to correct it."""
        return f"{self.reason}: {self.remedy}."


class _Constructor(yaml.constructor.SafeConstructor):
    """PyYAML's constructor, changed to raise `YamlFault` for every value that does not fit its tag.

    It also rejects unknown tags, integers of more than `MOST_DIGITS` characters, and keys that are
    dates or bytes.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        line = node.start_mark.line + 1
        try:
            if node.tag == INTEGER and len(node.value) > MOST_DIGITS:
                raise ValueError(f"an integer of {len(node.value):,} digits")
            value = super().construct_object(node, deep=True)  # all levels inside this `try`
            if isinstance(value, dict) and not all(isinstance(key, KEY_TYPES) for key in value):
                raise YamlFault("a key of a mapping is a date or bytes", line, "quote the key")
            return value
        except yaml.constructor.ConstructorError as error:
            mark = error.problem_mark
            raise YamlFault(
                str(error.problem),
                line if mark is None else mark.line + 1,
                "use plain values without tags, and quote strings that contain brackets or braces",
            ) from None
        except YamlFault:
            raise
        except ValueError as error:
            reason = f"a value does not fit its YAML type ({error})"
        except (LookupError, AttributeError, TypeError, OverflowError):
            reason = "a value does not fit its YAML type"
        raise YamlFault(reason, line, "quote the value to make it a string, or remove its tag")


def compose_yaml(content: bytes | str) -> yaml.Node | None:
    """Return the root node of a YAML document; `None` if the document is empty.

    Raises:
        YamlFault: if the document is not UTF-8 or not YAML, has aliases (`*name`), which can expand
            without limit, or is nested deeper than `MOST_LEVELS`.
    """
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise YamlFault(f"not UTF-8 ({error.reason})", line, "save the file as UTF-8") from None
    _check_bounds(text)
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlFault(error.reason, line, "remove the character") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        parts = filter(None, (error.context, error.problem))
        raise YamlFault(
            ", ".join(parts),
            mark.line + 1 if mark is not None else 1,
            "use lines of `key: value`, indented with spaces, and quote strings that contain "
            "brackets, `: ` or ` #`",
        ) from None


def construct_yaml(node: yaml.Node) -> Any:
    """Return the Python value of a YAML node, including the nodes inside it.

    Raises:
        YamlFault: if a tag is unknown, a value does not fit its tag, an integer has more than
            `MOST_DIGITS` characters, or a key of a mapping is a date, bytes or not hashable.
    """
    return _Constructor().construct_document(node)


def load_yaml(content: bytes | str) -> Any:
    """Parse a YAML document and return its value; `None` if the document is empty.

    Raises:
        YamlFault: if the document is not valid UTF-8 and YAML, has aliases, is nested deeper than
            `MOST_LEVELS`, or has values or keys of unsuitable types.
    """
    root = compose_yaml(content)
    return None if root is None else construct_yaml(root)


def yaml_scalar(value: object) -> str:
    """Format a value as YAML on one line, in the notation of JSON.

    Unprintable characters become `\\UXXXXXXXX`, an escape that only YAML has, because some of them
    would be line breaks in YAML, or are not allowed in it. PyYAML parses the results for NaN,
    infinity, and numbers such as `1e-07` as strings.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(
        character if character.isprintable() else f"\\U{ord(character):08x}" for character in text
    )


def _check_bounds(text: str) -> None:
    """Raise `YamlFault` if YAML has aliases or deep nesting, which could exhaust memory or time."""
    level = 0
    line = 1
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # Python's is slow for deep nesting
    with suppress(yaml.YAMLError):  # `yaml.compose` reports it
        for event in yaml.parse(text, Loader=loader):
            if event.start_mark is not None:
                line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise YamlFault(
                    "aliases (`*name`) are not supported",
                    line,
                    "replace each alias with its value, or quote strings that begin with `*`",
                )
            level += isinstance(event, yaml.CollectionStartEvent)
            level -= isinstance(event, yaml.CollectionEndEvent)
            if level > MOST_LEVELS:
                raise YamlFault(
                    f"the document is nested deeper than {MOST_LEVELS} levels", line, "flatten it"
                )
