"""Read the settings of a YAML file or a shell script of another project, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_ext.common.foreign_files import ForeignFile, read_bytes
from grpo_ext.common.suggestions import unknown
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.migrate.commands import Launch, find_launch
from grpo_ext.migrate.draft import Remark, Setting, Source, is_known, shown
from grpo_ext.migrate.shell import MOST_BYTES, ScriptFault, read_commands
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import read_yaml

PROJECTS = ("trl", "open-r1", "ms-swift", "verl")
VERL_SECTIONS = ("actor_rollout_ref", "algorithm", "data", "trainer")
SWIFT_SECTIONS = ("train", "rollout")
OPEN_R1_KEYS = re.compile(
    r"dataset_prompt_column|system_prompt|benchmarks|callbacks|cosine_\w+|repetition_\w+|code_\w+"
    r"|hub_model_revision|wandb_\w+|overwrite_hub_revision|push_to_hub_revision|dataset_mixture"
)
REFERENCE = re.compile(r"\$\{[^{}]{0,200}\}")
NUMBER = re.compile(r"[-+]?\d{1,300}(\.\d{0,300})?([eE][-+]?\d{1,3})?")


def read_source(path: Path, project: str | None = None) -> Source:
    """Return the settings in a file of another project.

    Args:
        path: a YAML file (`.yaml` or `.yml`) or a shell script.
        project: one of `PROJECTS`; if `None`, the project is inferred from the keys or command.

    Raises:
        ValueError: if the file is not a valid YAML file or script, has no settings or training
            command of a known project, or is for a method other than GRPO.
        OSError: if the file does not exist or cannot be opened.
    """
    if path.suffix in (".yaml", ".yml"):
        source = from_yaml(path, project)
    else:
        source = from_script(path, project)
    refuse_other_methods(source)
    if not any(is_known(key) for key in source.settings):
        raise ValueError(
            f"{path} has no setting of a known project. Pass a YAML file or a script of {names()}."
        )
    return source


def refuse_other_methods(source: Source) -> None:
    """Raise `ValueError` if the settings are for a method other than GRPO.

    All of verl's advantage estimators except `gae` are accepted, and so are settings that name no
    method, or name it only by a variable.
    """
    others = []
    rlhf_type = source.settings.get("rlhf_type")
    if rlhf_type is not None and rlhf_type.value not in ("grpo", None):
        others.append(rlhf_type)
    estimator = source.settings.get("algorithm.adv_estimator")
    if estimator is not None and estimator.value == "gae":
        others.append(estimator)
    for setting in others:
        if setting.unknown is None:
            raise ValueError(
                f"{setting.place}: these settings are for a method other than GRPO "
                f"({setting.key} is {shown(setting.value)}). Pass a file that trains with GRPO."
            )


def names() -> str:
    """Return the names of the projects as a phrase such as `a, b or c`."""
    return f"{', '.join(PROJECTS[:-1])} or {PROJECTS[-1]}"


def from_yaml(path: Path, project: str | None, within: Path | None = None) -> Source:
    """Return the settings of a YAML file.

    Args:
        path: the file.
        project: one of `PROJECTS`; if `None`, the project is inferred from the keys.
        within: the folder that must contain the file after all links are resolved; `None` allows
            any folder.

    Raises:
        ValueError: if `read_yaml` rejects the file, for example because it is not a YAML mapping,
            sets a key twice, or is outside `within`.
        OSError: if the file does not exist or cannot be opened.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Pass the path of a file.")
    try:
        pairs = read_yaml(path, within)
    except RecipeError as error:
        raise ValueError(str(error)) from None
    project = project or project_of(pairs)
    sections: tuple[str, ...] = ()
    if project == "ms-swift":
        sections = SWIFT_SECTIONS
    settings: dict[str, Setting] = {}
    for key, (value, place) in pairs.items():
        for name, inner in flattened(key, value, project == "verl").items():
            bare = name.removeprefix(f"{key}.") if key in sections else name
            settings[bare] = yaml_setting(bare, inner, place or str(path))
    for section in sections:
        nested = settings.pop(section, None)
        if nested is not None and isinstance(nested.value, Mapping):
            for key, value in nested.value.items():
                settings[str(key)] = yaml_setting(str(key), value, nested.place)
    return Source(project, str(path), settings)


def project_of(keys: Mapping[str, Any]) -> str:
    """Return the project that the keys of a YAML file point to; "trl" if they point to no other."""
    if any(section in keys for section in VERL_SECTIONS):
        return "verl"
    if "rlhf_type" in keys or ("model" in keys and "model_name_or_path" not in keys):
        return "ms-swift"
    if any(OPEN_R1_KEYS.fullmatch(str(key)) for key in keys):
        return "open-r1"
    return "trl"


def flattened(key: str, value: Any, nested: bool) -> dict[str, Any]:
    """Return a nested mapping as a flat dict with dotted keys, such as `{"a.b": 1}`.

    Args:
        key: the first part of all keys.
        value: the mapping; if it is empty or not a mapping, the result is `{key: value}`.
        nested: whether to flatten `value`; if not, the result is `{key: value}`.
    """
    if not (nested and isinstance(value, Mapping) and value):
        return {key: value}
    entries: dict[str, Any] = {}
    for name, inner in value.items():
        entries |= flattened(f"{key}.{name}", inner, nested)
    return entries


def yaml_setting(key: str, value: Any, place: str) -> Setting:
    """Return a setting from a YAML file.

    If the value contains a reference `${...}`, which OmegaConf would resolve, it counts as unknown.
    """
    return Setting(key, value, place, reference_in(value))


def reference_in(value: Any) -> str | None:
    """Return the first `${...}` in a value or in its lists and mappings, or `None`."""
    if isinstance(value, str):
        found = REFERENCE.search(value)
        return None if found is None else found[0]
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    references = (reference_in(part) for part in parts)
    return next((reference for reference in references if reference is not None), None)


def from_script(path: Path, project: str | None) -> Source:
    """Return the settings of a script's first training command and of the YAML file it names.

    Options of the command replace settings of the YAML file.

    Args:
        path: the shell script.
        project: one of `PROJECTS`; if `None`, the project is inferred from the command.

    Raises:
        ValueError: if the script or the YAML file is not valid, or no command trains with GRPO.
        OSError: if a file does not exist or cannot be opened.
    """
    try:
        text = read_bytes(path, MOST_BYTES).decode()
        launch = find_launch(read_commands(text), project)
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8. Pass a YAML file or a shell script that is saved as UTF-8."
        ) from None
    except ForeignFile as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except ScriptFault as fault:
        raise ValueError(f"{path} cannot be read: {fault}") from None
    if launch is None:
        raise ValueError(
            f"{path} has no known command that trains with GRPO. Pass a script with such a "
            "command, for example `trl grpo`, `swift rlhf`, `python -m verl.trainer.main_ppo` or "
            "`accelerate launch grpo.py --config FILE`, or pass the YAML file with its settings."
        )
    source = Source(launch.project, str(path), {}, launch.processes)
    for line, remark in launch.remarks:
        source.remarks.append(Remark(remark, place=f"{path}:{line}"))
    read_config(source, launch, path)
    for option in launch.options:
        values = [word_value(word.text) for word in option.words]
        unknown = [word.unknown for word in option.words if word.unknown is not None]
        place = f"{path}:{option.line}"
        value: Any = values
        if not values:
            value = True
        elif len(values) == 1:
            value = values[0]
        setting = Setting(option.key, value, place, " and ".join(unknown) or None)
        source.settings[option.key] = setting
    return source


def read_config(source: Source, launch: Launch, path: Path) -> None:
    """Add to `source` the settings of the YAML file that a command names.

    The file must be in the folder of the script, the current folder, or a subfolder of either. If
    no such file exists, or if parts of the file's name are not known, a remark says that its
    settings were not read.

    Args:
        source: the settings of the script; changed in place.
        launch: the training command.
        path: the script.

    Raises:
        ValueError: if `read_yaml` rejects the YAML file.
        OSError: if the YAML file cannot be opened.
    """
    if launch.config is None:
        return
    place = f"{path}:{launch.config.line}"
    name = launch.config.text
    for folder in (path.resolve().parent, Path.cwd()):
        file = folder / name
        if (
            launch.config.unknown is None
            and file.is_file()
            and file.resolve().is_relative_to(folder)
        ):
            config = from_yaml(file, source.project, folder)
            source.settings |= config.settings
            return
    cause = "there is no such file in the folder of the script or the current one"
    if launch.config.unknown is not None:
        cause = f"its name needs {launch.config.unknown}, which the script does not set"
    source.remarks.append(
        Remark(
            f"the settings of {name} were not read: {cause}. Translate that file, and add the "
            "options of this command.",
            "config",
            place,
        )
    )


def word_value(text: str) -> Any:
    """Parse a word as a number, boolean, `None`, list or mapping; return other words as strings."""
    if NUMBER.fullmatch(text):
        return float(text) if re.search("[.eE]", text) else int(text)
    if text in ("None", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("[", "{"):
        try:
            return load_yaml(text)
        except YamlFault:
            return text
    return text


def check_project(name: str) -> str:
    """Return the name of a project unchanged; raise `ValueError` if it is unknown."""
    if name not in PROJECTS:
        raise ValueError(unknown("project", name, PROJECTS))
    return name
