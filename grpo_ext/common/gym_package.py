"""Import the supported version of `reasoning_gym`, list its generators, and make its datasets.

A generator is one of the package's dataset classes. Its datasets generate problems from a seed and
score answers to them.
"""

from importlib.metadata import version
from types import ModuleType
from typing import Any

from grpo_ext.common.suggestions import unknown

# The version whose scorers were reviewed; `rewards/gym_patterns.py` lists those that call `eval`.
VERSION = "0.1.25"
# Options that the task sets itself, or that name a file of this machine.
RESERVED = frozenset({"seed", "size", "data_file"})


def import_gym() -> ModuleType:
    """Import `reasoning_gym` and return it.

    Raises:
        ImportError: if the package is missing, cannot be imported, or has a version other than
            `VERSION`.
    """
    try:
        found = version("reasoning-gym")
        import reasoning_gym.factory
    except ImportError as error:
        raise ImportError(
            f"reasoning_gym cannot be imported ({error}). Run `pip install "
            f"reasoning-gym=={VERSION}`."
        ) from error
    if found != VERSION:
        raise ImportError(
            f"reasoning_gym {found} is installed, but only {VERSION} is supported: other versions "
            f"may score answers differently. Run `pip install reasoning-gym=={VERSION}`."
        )
    return reasoning_gym


def generator_configs() -> dict[str, type]:
    """Return the configuration dataclass of each generator except `composite`, by name.

    Raises:
        ImportError: if the supported version of `reasoning_gym` cannot be imported.
    """
    datasets = import_gym().factory.DATASETS
    return {name: config for name, (_, config) in datasets.items() if name != "composite"}


def make_dataset(name: str, options: dict[str, Any], seed: int, size: int) -> Any:
    """Return a generator's dataset, which generates problems and scores answers to them.

    Invalid options raise whatever error `reasoning_gym` raises for them.

    Args:
        name: the name of the generator, a key of `generator_configs()`.
        options: fields of the generator's configuration, except those in `RESERVED`.
        seed: the seed of the first problem; it increases by 1 from each problem to the next.
        size: the number of problems.

    Raises:
        ImportError: if the supported version of `reasoning_gym` cannot be imported.
        ValueError: if the name is unknown, or an option is in `RESERVED`.
    """
    configs = generator_configs()
    if name not in configs:
        raise ValueError(unknown("generator", name, configs))
    for option in options.keys() & RESERVED:
        reason = "reads a local file" if option == "data_file" else "is set by the task itself"
        raise ValueError(f"{name}: the option {option!r} {reason}. Remove the option.")
    return import_gym().create_dataset(name, seed=seed, size=size, **options)
