"""The check of the private parts of TRL and transformers that this package relies on; `data/contract.yaml` lists them.

TRL changes its GRPO trainer often and guarantees none of these names. A run on a TRL whose private parts differ could be wrong
without an error, so `check_contract()` refuses it when a trainer is made.
"""

import inspect
from functools import cache
from pkgutil import resolve_name
from typing import Any

import trl

from grpo_ext.common.files import data_yaml

KNOWN = "1.16"  # the version of TRL that this package is written for
CONTRACT: dict[str, Any] = data_yaml("grpo_ext.seams", "contract.yaml")


@cache
def check_contract() -> None:
    """Check the installed TRL against the contract; `RuntimeError` names each part that has changed."""
    moved = []
    if not trl.__version__.startswith(f"{KNOWN}."):
        moved.append(f"TRL is {trl.__version__}, and this package is written for {KNOWN}")
    for path, methods in CONTRACT["methods"].items():
        owner: Any = resolve_name(path)
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            found = (
                list(inspect.signature(method).parameters)[1 : len(expected) + 1]
                if method
                else None
            )
            if found != expected:
                moved.append(
                    f"{owner.__name__}.{name}: expected parameters {expected}, found {found}"
                )
    of_trainer = [f"self.{name} = " for name in CONTRACT["attributes"]]
    for path, texts in [("trl.GRPOTrainer.__init__", of_trainer), *CONTRACT["code"].items()]:
        above, _, name = path.rpartition(".")
        owner = resolve_name(above)
        source = inspect.getsource(getattr(owner, name)) if hasattr(owner, name) else ""
        moved += [
            f"{owner.__name__}.{name} no longer has `{text.strip()}`"
            for text in texts
            if text not in source
        ]
    loop = inspect.getsource(trl.GRPOTrainer._inner_training_loop).partition("on_train_begin")[0]
    unset = [name for name in CONTRACT["loss_state"] if f"self.{name} = " not in loop]
    moved += [f"Trainer no longer sets `{name}` before on_train_begin" for name in unset]
    if moved:
        raise RuntimeError(
            f"grpo_ext does not fit the installed TRL. Install one that it fits: pip install 'trl=={KNOWN}.*'. "
            "What has changed: " + "; ".join(moved) + "."
        )
