"""The registry: a function becomes a reward by a decorator, and a name becomes a callable by `build`."""

import copyreg
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from grpo_ext.common.modules import load_module
from grpo_ext.common.near import did_you_mean
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.reward import Example, NeedsCpu, Reward, RewardInfo, shipped_examples
from grpo_ext.rewards.signature import read_signature

_registered: dict[str, RewardInfo] = {}


def register(
    name: str,
    *,
    needs_cpu: NeedsCpu = False,
    asks_server: bool = False,
    examples: Iterable[Example] = (),
    explain: Callable[..., Explanation] | None = None,
) -> Callable[[Callable], Callable]:
    """Decorator that puts `function(completions, ...)` into the catalogue as `name` and returns the function unchanged.

    Args:
        name: letters, digits, `_` and `-`, beginning with a letter.
        needs_cpu: whether the function is heavy enough for worker processes (`reward_workers`), which pass one row a call;
            `"formulas"`: only for rows that call `same_formula`.
        asks_server: whether the function sends each completion to a server, which takes time or money. Such a reward is not
            asked what the best constant answer of an evaluation would earn.
        examples: completions with their scores, run by `grpo-ext rewards check`.
        explain: `explain(completion, *, ...)` says why one completion got its score, for the report. It takes the columns of
            one row and the options, each by name.

    Raises:
        ValueError: if the name has other characters or belongs to another function.
        TypeError: if the function cannot be called as a reward.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(
            f"A reward's name has letters, digits, `_`, `-` and begins with a letter, unlike {name!r}."
        )

    def decorate(function: Callable) -> Callable:
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__qualname__} is async: name it in the recipe as `package.module:function`."
            )
        check_free(name, function)
        signature = read_signature(function)
        if needs_cpu and (
            bound := [e for e in signature.extras if e not in ("prompts", "completion_ids")]
        ):
            raise TypeError(
                f"{function.__qualname__} needs_cpu, and {bound[0]} cannot be sent to a worker process."
            )
        doc = inspect.getdoc(function) or ""
        _registered[name] = RewardInfo(
            **vars(signature),
            name=name,
            summary=" ".join(doc.split("\n\n")[0].split()),
            doc=doc,
            function=function,
            needs_cpu=needs_cpu,
            asks_server=asks_server,
            examples=tuple(examples) or shipped_examples(name),
            explain=explain,
        )
        return function

    return decorate


def check_free(name: str, function: Callable) -> None:
    """Raise `ValueError` if `name` belongs to another function. A function may register again: reloads, notebook cells."""
    owner = _registered[name].function if name in _registered else function
    renamed = owner.__qualname__ != function.__qualname__
    if owner.__module__ != function.__module__ or (renamed and function.__module__ != "__main__"):
        raise ValueError(
            f"The reward name {name!r} is taken by {owner.__module__}; {function.__qualname__} needs another."
        )


def names() -> list[str]:
    """Return every name that `build` knows."""
    return sorted(_registered)


def lookup(name: str) -> RewardInfo:
    """Return the entry of `name`; `ValueError` with the nearest known name if there is none."""
    if name not in _registered:
        raise ValueError(
            f"No reward is named {name!r}.{did_you_mean(name, names())} Known: {', '.join(names())}. One of your own: "
            "`reward_plugins: [FILE.py]` in a recipe, `--plugin FILE.py` after `grpo-ext rewards ...`."
        )
    return _registered[name]


def build(name: str, **options: Any) -> Reward:
    """Return the reward registered as `name`, with `options`; `ValueError` if either is unknown."""
    return Reward(lookup(name), options)


def list_rewards() -> list[RewardInfo]:
    """Return the catalogue, sorted by name."""
    return [_registered[name] for name in names()]


def rebuild(
    registered: str,
    module: str,
    file: str | None,
    code: bytes | None,
    options: dict[str, Any],
    name: str,
) -> Reward:
    """Return the reward that was pickled as `reduced` says."""
    if code is not None and registered not in _registered:
        import dill

        _registered[registered] = dill.loads(code)
    if registered not in _registered:
        load_module(module, file)
    return Reward(lookup(registered), options, name)


def reduced(reward: Reward) -> tuple[Callable[..., Reward], tuple[Any, ...]]:
    """Reduce a reward for `pickle` to its name with its module and file, or its code if it is from a script or notebook."""
    entry, code = reward.registration, None
    module = entry.function.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":  # a script must not run again, and a notebook has no module
        import dill

        code = dill.dumps(entry, recurse=True)
    return rebuild, (entry.name, module, file, code, reward.options, reward.name)


copyreg.pickle(Reward, reduced)
