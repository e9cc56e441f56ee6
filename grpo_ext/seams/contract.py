"""Check that TRL and transformers still have the names and code that this package relies on.

TRL changes its GRPO trainer often and guarantees no private name. With another TRL version, a run
could be silently wrong. Therefore, `check_contract()` is called when a trainer is created, and
raises an error if anything has changed. The protocols in `port` list the trainer attributes and
methods that we use; `data/contract.yaml` lists everything else.
"""

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pkgutil import resolve_name
from typing import Any

import transformers
import trl

from grpo_ext.common.files import data_yaml
from grpo_ext.seams.port import TransformersTrainer, TRLTrainer

KNOWN = "1.16"  # the version of TRL that this package is written for
CONTRACT: dict[str, Any] = data_yaml("grpo_ext.seams", "contract.yaml")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@cache
def check_contract() -> None:
    """Check the installed TRL and transformers against the contract, once per process.

    Raises:
        RuntimeError: if anything has changed; the message lists every change.
    """
    changes = [
        *version_changes(),
        *name_changes(),
        *method_changes(),
        *attribute_changes(),
        *code_changes(),
        *field_changes(),
    ]
    if changes:
        raise RuntimeError(
            f"grpo_ext is not compatible with the installed TRL {trl.__version__} and transformers "
            f"{transformers.__version__}. Install trl=={KNOWN}.* and the transformers version from "
            "constraints.txt in the grpo_ext repository. The differences: "
            f"{'; '.join(changes)}."
        )


def version_changes() -> Iterator[str]:
    if not trl.__version__.startswith(f"{KNOWN}."):
        yield f"TRL is {trl.__version__}, and this package is written for {KNOWN}"


def is_gone(path: str) -> bool:
    """Return whether a dotted path, such as `trl.GRPOTrainer.log`, does not exist."""
    try:
        resolve_name(path)
    except (ImportError, AttributeError):
        return True
    return False


def name_changes() -> Iterator[str]:
    """Yield a message for each name in the contract that no longer exists."""
    for path in CONTRACT["names"]:
        if is_gone(path):
            yield f"{path} no longer exists"


def method_changes() -> Iterator[str]:
    """Yield a message for each method that is missing, or whose leading parameters have changed."""
    for path, expected in expected_methods().items():
        if is_gone(path):
            yield f"{path} no longer exists"
            continue
        parameters = parameters_of(resolve_name(path))[: len(expected)]
        if parameters != expected:
            yield f"{path}: expected parameters {expected}, found {parameters}"


def expected_methods() -> dict[str, list[str]]:
    """Return the leading parameters of each method that we override or call, by its path."""
    owners = {
        **CONTRACT["methods"],
        "transformers.Trainer": methods_of(TransformersTrainer),
        "trl.GRPOTrainer": CONTRACT["methods"]["trl.GRPOTrainer"] | methods_of(TRLTrainer),
    }
    return {
        f"{owner}.{name}": parameters
        for owner, methods in owners.items()
        for name, parameters in methods.items()
    }


def methods_of(port: type) -> dict[str, list[str]]:
    """Return the parameter names of each method in a protocol, except special methods."""
    return {
        name: parameters_of(method)
        for name, method in vars(port).items()
        if inspect.isfunction(method) and not name.startswith("__")
    }


def parameters_of(method: Any) -> list[str]:
    """Return the names of a method's parameters, without `self`, `*args` and `**kwargs`."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [parameter.name for parameter in parameters if parameter.kind not in VARIADIC]


def attribute_changes() -> Iterator[str]:
    """Yield a message for each trainer attribute that is no longer set, or is set too late."""
    initializer = inspect.getsource(trl.GRPOTrainer.__init__)
    for name in TRLTrainer.__annotations__:
        if f"self.{name} = " not in initializer:
            yield f"GRPOTrainer.__init__ no longer sets `self.{name}`"
    module = inspect.getsource(sys.modules[transformers.Trainer.__module__])
    for name in TransformersTrainer.__annotations__:
        if f"self.{name} = " not in module:
            yield f"Trainer no longer sets `self.{name}`"
    loop = inspect.getsource(trl.GRPOTrainer._inner_training_loop).partition("on_train_begin")[0]
    for name in CONTRACT["loss_state"]:
        if f"self.{name} = " not in loop:
            yield f"Trainer no longer sets `{name}` before on_train_begin"


def code_changes() -> Iterator[str]:
    """Yield a message for each code fragment that our patches rely on but that no longer exists."""
    for path, texts in CONTRACT["code"].items():
        source = "" if is_gone(path) else inspect.getsource(resolve_name(path))
        for text in texts:
            if text not in source:
                yield f"{path} no longer has `{text.strip()}`"


def field_changes() -> Iterator[str]:
    """Yield a message for each field in the contract that `GRPOConfig` no longer has."""
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    for name in CONTRACT["config_fields"]:
        if name not in fields:
            yield f"GRPOConfig no longer has the field `{name}`"
