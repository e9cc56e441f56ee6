"""Load the presets in `data/presets.yaml`: the value of each field, and the source of the value."""

from typing import Any

from grpo_ext.common.files import data_yaml


def _with_source(preset: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return a (value, reference) pair for each field of a preset, by the field's name.

    The reference is the preset's source, followed by the place in it.
    """
    fields = {}
    for field, (value, place) in preset["values"].items():
        fields[field] = (value, f"{preset['source']}, {place}")
    return fields


_FILE = data_yaml("grpo_ext.objective", "presets.yaml")
PRESETS = {name: _with_source(preset) for name, preset in _FILE.items()}
