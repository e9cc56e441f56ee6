"""The versions of TRL that this package is written for."""

import trl
from packaging.version import Version

KNOWN = ("1.15", "1.16")


def installed() -> str:
    """Return the installed version of TRL, such as "1.16"."""
    return ".".join(map(str, Version(trl.__version__).release[:2]))


SINCE_1_16 = installed() != "1.15"  # the contract refuses any other version
