"""Find the recipes and accelerate configs that come with the package; load accelerate configs."""

import json
from pathlib import Path
from typing import Any

import grpo_ext
from grpo_ext.common.foreign_files import read_bytes, read_text
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.recipe.typed_values import Values

MOST_BYTES = 2**18  # size limit of an accelerate config


def recipe_folder() -> Path:
    """Return the package's recipe folder; in a checkout, this is a link to `recipes/`."""
    return Path(grpo_ext.__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package, such as `countdown/tiny`."""
    folder = recipe_folder()
    names = []
    for path in folder.glob("*/*.yaml"):
        if path.parent.name != "accelerate":
            names.append(path.relative_to(folder).with_suffix("").as_posix())
    return sorted(names)


def recipe_path(name: str | Path) -> Path:
    """Return `name` as a path if it exists, otherwise the path of the packaged recipe `name`.

    Packaged recipes have names such as `countdown/tiny`; `recipes/countdown/tiny.yaml` also works
    outside a checkout.

    Raises:
        FileNotFoundError: if there is neither such a path nor such a packaged recipe.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    shipped = path.as_posix().removeprefix("recipes/").removesuffix(".yaml")
    names = recipe_names()
    if shipped in names:
        return recipe_folder() / f"{shipped}.yaml"
    hint = did_you_mean(shipped, names) or " `grpo-ext recipes` lists the recipes of the package."
    raise FileNotFoundError(f"There is no recipe at {path}.{hint}")


def accelerate_config(name: str) -> Path:
    """Return the path of an accelerate config.

    It is `name` itself if that is a file, otherwise `recipes/accelerate/{name}.yaml`.

    Raises:
        FileNotFoundError: if neither exists; the message lists the names in that folder.
    """
    folder = recipe_folder() / "accelerate"
    for path in (Path(name).expanduser(), folder / f"{name}.yaml"):
        if path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    raise FileNotFoundError(
        f"accelerate_config: there is no file {name!r}. Set it to the path of a file, or to one of "
        f"these names: {names}."
    )


def accelerate_settings(name: str) -> dict[str, Any]:
    """Return the values of an accelerate config, or an empty dict for an empty file.

    Args:
        name: the path of the config, or a name in `recipes/accelerate/`.

    Raises:
        FileNotFoundError: if the file does not exist.
        OSError: if the file cannot be read or is too large.
        ValueError: if the file is not a YAML mapping, or its `num_processes`, its
            `deepspeed_config` or the `zero_stage` in it is invalid.
    """
    path = accelerate_config(name)
    try:
        settings = load_yaml(read_bytes(path, MOST_BYTES))
    except YamlFault as fault:
        raise ValueError(f"accelerate_config: {path}:{fault.line}: {fault.advice}") from None
    settings = {} if settings is None else settings
    if not isinstance(settings, dict):
        raise ValueError(
            f"accelerate_config: {path} is not a mapping. It must consist of lines of "
            "`key: value`, like the file that `accelerate config` writes."
        )
    processes = settings.get("num_processes")
    if processes is not None and (type(processes) is not int or processes < 1):
        raise ValueError(
            f"accelerate_config: {path}: num_processes must be a whole number above 0; got "
            f"{processes!r}."
        )
    sharded = settings.get("deepspeed_config") or {}
    if not isinstance(sharded, dict):
        raise ValueError(
            f"accelerate_config: {path}: deepspeed_config must be a mapping; got {sharded!r}."
        )
    stage = sharded.get("zero_stage")
    if stage is not None and str(stage) not in ("0", "1", "2", "3"):
        raise ValueError(
            f"accelerate_config: {path}: zero_stage must be 0, 1, 2 or 3; got {stage!r}."
        )
    return settings


def settings_of(v: Values) -> dict[str, Any]:
    """Return the values of the recipe's accelerate config.

    The result is empty if the recipe has no accelerate config or the file is missing or invalid.
    """
    try:
        return accelerate_settings(v.accelerate_config) if v.accelerate_config else {}
    except (OSError, ValueError):
        return {}


def sharding(v: Values) -> int:
    """Return how the recipe's accelerate config shards the model, as a number from 0 to 4.

    0 means that there is no sharding or no usable config, 1 to 3 are DeepSpeed's ZeRO stages, and 4
    is FSDP. If `deepspeed_config` has a `deepspeed_config_file`, the stage is read from that file.
    """
    config = settings_of(v)
    if config.get("distributed_type") == "FSDP":
        return 4
    deepspeed = config.get("deepspeed_config") or {}
    file = deepspeed.get("deepspeed_config_file")
    if file is not None:
        return zero_stage_in(Path(str(file)))
    return int(deepspeed.get("zero_stage") or 0)


def zero_stage_in(path: Path) -> int:
    """Return the ZeRO stage in a DeepSpeed config file, or 0 if it cannot be read or sets none."""
    try:
        config = json.loads(read_text(path.expanduser(), MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return 0
    section = config.get("zero_optimization") if isinstance(config, dict) else None
    stage = section.get("stage") if isinstance(section, dict) else None
    return stage if type(stage) is int and 1 <= stage <= 3 else 0
