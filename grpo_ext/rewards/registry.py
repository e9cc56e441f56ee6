"""The registry of rewards: `register` adds a function, and `build` returns a reward by name."""

import copyreg
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from grpo_ext.common.modules import load_module
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.reward import Example, NeedsCpu, Reward, RewardInfo, shipped_examples
from grpo_ext.rewards.signature import (
    is_async,
    module_of,
    name_of,
    object_of,
    read_signature,
    routine_of,
)

_registered: dict[str, RewardInfo] = {}


def register(
    name: str,
    *,
    needs_cpu: NeedsCpu = False,
    asks_server: bool = False,
    loads_model: bool = False,
    examples: Iterable[Example] = (),
    explain: Callable[..., Explanation] | None = None,
) -> Callable[[Callable], Callable]:
    """Decorator that registers `function(completions, ...)` as a reward and returns it unchanged.

    It also accepts an object whose `__call__` has this signature, or a class of such objects whose
    constructor needs no arguments.

    Args:
        name: the reward's name: letters, digits, `_` and `-`, beginning with a letter.
        needs_cpu: whether to run the function in worker processes (`reward_workers`), with one row
            per call; `"formulas"` does so only for rows that compare formulas with the module
            `engine` (for example, by `same_formula`) or on which the function fails.
        asks_server: whether the function sends each completion to a server, which takes time or
            costs money. Evaluations do not score constant answers with such a reward.
        loads_model: whether the function loads a language model, named by its option `model`. If
            `model` is `None`, a run sets `model` and `revision` to those of its own model. If the
            function also has the options `unrelated` and `num_unrelated`, and `unrelated` is
            `None`, a run sets `unrelated` to prompts from its data. `grpo-ext check` does not call
            such a reward, and evaluations do not score constant answers with it.
        examples: completions with their expected scores, run by `grpo-ext rewards check`.
        explain: a function `explain(completion, *, ...)` that says why one completion got its
            score, for the report. It gets the columns of one row and the options, each by name.

    Raises:
        ValueError: if the name does not have this form, or is taken by another function.
        TypeError: if the function cannot be called as a reward, is async, or combines `needs_cpu`
            with a parameter that cannot be sent to a worker, such as `trainer_state`.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(
            f"{name!r} is not a valid name for a reward. Use letters, digits, `_` and `-`, "
            "and begin with a letter."
        )

    def decorate(decorated: Callable) -> Callable:
        function = object_of(decorated)
        if is_async(function):
            raise TypeError(
                f"{name_of(function)} is async and cannot be registered. Name it in the "
                "recipe as `package.module:function`."
            )
        check_free(name, function)
        signature = read_signature(function)
        for extra in signature.extras:
            if needs_cpu and extra not in ("prompts", "completion_ids"):
                raise TypeError(
                    f"{name_of(function)} is registered with needs_cpu, but its argument {extra} "
                    f"cannot be sent to a worker process. Remove needs_cpu or {extra}."
                )
        doc = inspect.getdoc(function) or inspect.getdoc(routine_of(function)) or ""
        _registered[name] = RewardInfo(
            **vars(signature),
            name=name,
            summary=" ".join(doc.split("\n\n")[0].split()),
            doc=doc,
            function=function,
            registered=decorated,
            needs_cpu=needs_cpu,
            asks_server=asks_server,
            loads_model=loads_model,
            examples=tuple(examples) or shipped_examples(name),
            explain=explain,
        )
        return decorated

    return decorate


def check_free(name: str, function: Callable) -> None:
    """Raise `ValueError` if `name` is taken by another function.

    The same function may be registered again, as when its module is reloaded. In `__main__`, a
    function may also take over the name of another one, as when a notebook cell is edited and
    rerun.
    """
    if name not in _registered:
        return
    owner = _registered[name].function
    is_renamed = name_of(owner) != name_of(function)
    module = module_of(function)
    if module_of(owner) != module or (is_renamed and module != "__main__"):
        raise ValueError(
            f"The reward name {name!r} is already taken by {module_of(owner)}. Register "
            f"{name_of(function)} under another name."
        )


def names() -> list[str]:
    """Return the names of all registered rewards, sorted."""
    return sorted(_registered)


def lookup(name: str) -> RewardInfo:
    """Return the registry entry of the reward `name`.

    Raises:
        ValueError: if there is no such reward. The message lists the names of all rewards.
    """
    if name not in _registered:
        raise ValueError(
            f"No reward is named {name!r}.{did_you_mean(name, names())} Known: "
            f"{', '.join(names())}. To use a reward of your own, set `reward_plugins: "
            "[FILE.py]` in a recipe, or pass `--plugin FILE.py` to `grpo-ext rewards ...`."
        )
    return _registered[name]


def build(name: str, **options: Any) -> Reward:
    """Return the reward registered as `name`, with `options` applied.

    Raises:
        ValueError: if the name is unknown, or an option is unknown, missing or has a value of the
            wrong type.
    """
    return Reward(lookup(name), options)


def list_rewards() -> list[RewardInfo]:
    """Return the entries of all registered rewards, sorted by name."""
    return [_registered[name] for name in names()]


def rebuild(
    registered: str,
    module: str,
    file: str | None,
    code: bytes | None,
    options: dict[str, Any],
    name: str,
) -> Reward:
    """Rebuild a pickled reward from the arguments that `reduced` returns.

    If the reward is not registered in this process, first register it.

    Args:
        registered: the name under which the reward is registered.
        module: the name of the module that registers it.
        file: the file of that module, or `None` if it has none.
        code: the reward's registry entry, pickled with dill, if it was defined in `__main__`.
            Otherwise `None`, and the module is imported to register the reward.
        options: the reward's options.
        name: the name of the reward's metric.
    """
    if code is not None and registered not in _registered:
        import dill

        _registered[registered] = dill.loads(code)
    if registered not in _registered:
        load_module(module, file)
    return Reward(lookup(registered), options, name)


def reduced(reward: Reward) -> tuple[Callable[..., Reward], tuple[Any, ...]]:
    """Reduce a reward for `pickle`: return `rebuild` and the arguments to call it with.

    The pickle contains the reward's names, module, file and options. It also contains the code of a
    reward that was defined in a script or notebook (`__main__`).
    """
    entry = reward.registration
    module = module_of(entry.function)
    file = getattr(sys.modules.get(module), "__file__", None)
    code = None
    if module == "__main__":  # a script must not run again, and a notebook has no file to load
        import dill

        code = dill.dumps(entry, recurse=True)
    return rebuild, (entry.name, module, file, code, reward.options, reward.name)


copyreg.pickle(Reward, reduced)
