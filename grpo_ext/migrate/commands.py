"""Find the training command among the commands of a script, and its options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from grpo_ext.migrate.draft import is_known
from grpo_ext.migrate.shell import Command
from grpo_ext.migrate.shell_values import Word

OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
VERL_MAIN = re.compile(r"(?:verl|recipe)[\w./]*[./]main_(?!eval|generation)\w+(?:\.py)?")
# first words of commands that only mention a training command
NOT_TRAINING = ("echo", "printf", "pip", "pip3")
SERVERS = (("trl", "vllm-serve"), ("swift", "rollout"))
# options of launchers that say how many processes train
PROCESSES = ("num_processes", "nproc_per_node", "nproc-per-node")
NODES = ("num_machines", "nnodes")


@dataclass(frozen=True)
class Option:
    """An option of a command, with its values: the words up to the next option."""

    key: str
    words: list[Word]
    line: int


@dataclass
class Launch:
    """A training command: its project, options, processes, and remarks with line numbers."""

    project: str
    options: list[Option]
    processes: int | None = None
    config: Word | None = None  # a YAML file with further settings
    remarks: list[tuple[int, str]] = field(default_factory=list)


def find_launch(commands: Sequence[Command], project: str | None) -> Launch | None:
    """Return the first training command, or `None` if no command trains.

    A Python file with `grpo` in its name counts only if no other command trains. Further training
    commands and vLLM servers become remarks.

    Args:
        commands: the commands of a script.
        project: the name of the project; if `None`, it is inferred from the command.
    """
    training: list[tuple[Command, str, int]] = []
    for find in (training_command, training_file):
        for command in commands:
            found = find([word.text for word in command.words])
            if found is not None:
                training.append((command, *found))
        if training:
            break
    if not training:
        return None
    command, name, end = training[0]
    launch = launch_of(project or name, command, end)
    for other, _, _ in training[1:]:
        remark = "another training command, which was not read."
        launch.remarks.append((other.words[0].line, remark))
    for command in commands:
        words = [word.text for word in command.words]
        for server in SERVERS:
            if server in pairwise(words):
                remark = f"{' '.join(server)}: start `grpo-ext serve` instead."
                launch.remarks.append((command.words[0].line, remark))
    launch.remarks.sort()
    return launch


def training_command(words: list[str]) -> tuple[str, int] | None:
    """Return the project of a training command, and the number of words before its options.

    Return `None` for any other command.
    """
    if words[0] in NOT_TRAINING or "install" in words[:5]:
        return None
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if VERL_MAIN.fullmatch(word):
            return "verl", place + 1
        if word in ("swift", "megatron") and following == "rlhf":
            return "ms-swift", place + 2
        if word.endswith("cli/rlhf.py"):
            return "ms-swift", place + 1
        if word == "trl" and following == "grpo":
            return "trl", place + 2
    return None


def training_file(words: list[str]) -> tuple[str, int] | None:
    """Return the project of a command that runs a training script, and where its options begin.

    A training script is a Python file with `grpo` in its name; one of its options must be `config`
    or a known key. The options begin after the returned number of words. Return `None` for any
    other command.
    """
    if words[0] in NOT_TRAINING:
        return None
    for place, word in enumerate(words):
        if word.endswith(".py") and "grpo" in PurePosixPath(word).name:
            options = [OPTION.fullmatch(text) for text in words[place + 1 :]]
            keys = [option[1].replace("-", "_") for option in options if option is not None]
            if any(key == "config" or is_known(key) for key in keys):
                is_open_r1 = "open_r1" in word or "open-r1" in word
                return "open-r1" if is_open_r1 else "trl", place + 1
    return None


def launch_of(project: str, command: Command, end: int) -> Launch:
    """Build the `Launch` of a training command.

    The command's option `config` or `config_file` becomes `Launch.config`, and so does a YAML file
    that is the first argument of an ms-swift command. The launcher's `--config_file` becomes the
    option `accelerate_config`, except for ms-swift.

    Args:
        project: the name of the command's project.
        command: the training command.
        end: the number of words before its options.
    """
    before = options_of(command.words[:end])
    main = command.words[end - 1]
    words = command.words[end:]
    launch = Launch(project, overrides_of(words) if project == "verl" else options_of(words))
    launch.processes = processes_of(before, command)
    if "one_step_off" in main.text:
        remark = (
            "verl's one_step_off trainer samples while it trains: set `overlap: one_step` and "
            "`vllm_mode: server`."
        )
        launch.remarks.append((main.line, remark))
    for option in list(launch.options):
        if option.key in ("config", "config_file") and option.words:
            launch.config = option.words[0]
            launch.options.remove(option)
    if project == "ms-swift" and words and words[0].text.endswith((".yaml", ".yml")):
        launch.config = words[0]
    if project != "ms-swift":
        for option in before:
            if option.key == "config_file" and option.words:
                launch.options.append(Option("accelerate_config", option.words[:1], option.line))
    return launch


def processes_of(before: list[Option], command: Command) -> int | None:
    """Return how many processes a launcher starts, or `None` if this is unknown.

    accelerate's `--num_processes` takes precedence over the environment variables of the command,
    and these over other options.

    Args:
        before: the launcher's options, which precede the training script or module.
        command: the training command.
    """
    numbers: dict[str, int] = {}
    for option in before:
        for kind, keys in (("processes", PROCESSES), ("nodes", NODES)):
            text = option.words[0].text if option.words else ""
            if option.key in keys and re.fullmatch(r"[1-9]\d{0,5}", text):
                numbers[kind] = int(text)
                if option.key == "num_processes":
                    numbers["all"] = int(text)  # accelerate counts the processes of all machines
    for kind, key in (("processes", "NPROC_PER_NODE"), ("nodes", "NNODES")):
        word = command.environment.get(key)
        if word is not None and re.fullmatch(r"[1-9]\d{0,5}", word.text):
            numbers[kind] = int(word.text)
    if "processes" not in numbers:
        return None
    return numbers.get("all") or numbers["processes"] * numbers.get("nodes", 1)


def options_of(words: Sequence[Word]) -> list[Option]:
    """Parse words into options such as `--key value`, `--key=value`, `--key a b` and `--flag`.

    Words before the first option are ignored. Hyphens in a key become underscores. Commas at the
    end of a value are removed, except in the form `--key=value`.
    """
    options: list[Option] = []
    for word in words:
        found = OPTION.fullmatch(word.text)
        if found is not None:
            values = [] if found[2] is None else [Word(found[2], word.line, word.unknown)]
            options.append(Option(found[1].replace("-", "_"), values, word.line))
        elif options:
            text = word.text.rstrip(",") if len(word.text) > 1 else word.text
            options[-1].words.append(Word(text, word.line, word.unknown))
    return options


def overrides_of(words: Sequence[Word]) -> list[Option]:
    """Parse words into Hydra's overrides, such as `a.b=1`, followed by Hydra's options.

    These options are those that begin with `--config-`, such as `--config-name`.
    """
    overrides = []
    for word in words:
        found = OVERRIDE.fullmatch(word.text)
        if found is not None:
            value = Word(found[2], word.line, word.unknown)
            overrides.append(Option(found[1], [value], word.line))
    overrides += [option for option in options_of(words) if option.key.startswith("config_")]
    return overrides
