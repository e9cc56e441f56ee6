"""Selects the file for the installed version of TRL."""

from types import ModuleType

import trl
from packaging.version import Version

from grpo_ext.seams import trl_1_15, trl_1_16

FILES: dict[str, ModuleType] = {module.VERSION: module for module in (trl_1_15, trl_1_16)}


def installed() -> str:
    """Return the installed version of TRL, such as "1.16"."""
    return ".".join(map(str, Version(trl.__version__).release[:2]))


CURRENT: ModuleType = FILES.get(installed(), trl_1_16)  # the contract refuses an unknown version
