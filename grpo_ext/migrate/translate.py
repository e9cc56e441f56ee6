"""Translate the settings of TRL, open-r1, ms-swift or verl into a recipe."""

from __future__ import annotations

from collections.abc import Callable

from grpo_ext.common.files import data_yaml
from grpo_ext.migrate import swift, trl, verl
from grpo_ext.migrate.draft import Draft, Remark, Setting, Source, recipe_hints
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.foreign import FOREIGN, TRANSLATIONS, entry_of

DEFAULTS: dict[str, dict[str, object]] = data_yaml("grpo_ext.migrate", "defaults.yaml")
# accelerate configs for several processes that a translation may write
SHARDED = {*trl.ACCELERATE_CONFIGS.values()} - {"single_gpu"}
REMOVE = "remove it"  # how advice on a key without counterpart begins
REMOVE_AND = "remove it, and "  # if the user must also do something else
# for each project, the function that translates its special settings and returns the batch sizes
PROJECT_RULES: dict[str, Callable[[Draft, int | None, int | None], Batch]] = {
    "trl": trl.translate,
    "open-r1": trl.translate_open_r1,
    "ms-swift": swift.translate,
    "verl": verl.translate,
}


def translate(source: Source, processes: int | None = None) -> tuple[Draft, Batch]:
    """Translate the settings of another project into a recipe.

    Args:
        source: the settings of the other project.
        processes: the number of training processes; if `None`, that of the other project.

    Returns:
        The draft of the recipe, and its batch sizes.

    Raises:
        ValueError: if an optimizer step cannot be shared equally by the processes.
    """
    draft = Draft(source)
    draft.write("task", "prompts")
    batch = PROJECT_RULES[source.project](draft, source.processes, processes)
    for setting in list(draft.left.values()):
        translate_setting(draft, setting)
    leave_out_sharding(draft, batch)
    for key, value in DEFAULTS.get(source.project, {}).items():
        draft.default(key, value, source.project)
    for key in ("model_name_or_path", "dataset_name"):
        if key not in draft.values and key not in draft.missing:
            draft.missing[key] = f"{source.name} does not name it"
            draft.remark(None, f"{source.name} does not set {key}. Set it by hand.")
    return draft, batch


def leave_out_sharding(draft: Draft, batch: Batch) -> None:
    """Remove a multi-process accelerate config from the draft if only one process trains."""
    config = draft.values.get("accelerate_config")
    if batch.num_processes == 1 and config in SHARDED:
        del draft.values["accelerate_config"]
        draft.comments.pop("accelerate_config", None)
        text = f"accelerate_config: {config} was left out, because it is for several processes."
        draft.remarks.append(Remark(text, by_hand=False))


def translate_setting(draft: Draft, setting: Setting) -> None:
    """Write the recipe keys that correspond to a setting, or add a remark about it.

    The tables of `recipe.foreign` map keys of other projects to recipe keys. If a key is not in the
    tables and its last part is a recipe key other than `task` and `tasks`, that part is written.
    """
    name = entry_of(setting.key)
    inner = setting.key.rpartition(".")[2]
    if inner in ("task", "tasks"):
        draft.remark(setting, "not taken over: the recipe has task: prompts.")
        return
    if name is None:
        if inner in recipe_hints():
            draft.write(inner, setting.value, setting)
        else:
            draft.remark(setting, "not taken over: a recipe has no corresponding key.")
        return
    rule: object = TRANSLATIONS.get(name, FOREIGN[name][1])
    if isinstance(rule, dict) and setting.unknown is None:
        value = setting.value if isinstance(setting.value, str | int) else None
        rule = rule.get(value, rule.get("*"))
    if isinstance(rule, dict) and setting.unknown is None:
        for key, written in rule.items():
            draft.write(key, written, setting)
        return
    if isinstance(rule, str) and rule in recipe_hints():
        draft.write(rule, setting.value, setting)
        return
    advice = FOREIGN[name][1]
    if advice.startswith(REMOVE_AND):
        action = advice.removeprefix(REMOVE_AND)
        draft.remark(setting, f"left out. {action[0].upper()}{action[1:]}.")
    elif advice.startswith(REMOVE):
        draft.remark(setting, f"left out{advice.removeprefix(REMOVE)}.", by_hand=False)
    else:
        draft.remark(setting, f"not taken over. Use {advice}.")
