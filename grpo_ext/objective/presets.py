"""Presets by name, from `data/presets.yaml`: the value of each field, and the value's source."""

from typing import Any

from grpo_ext.common.files import data_yaml

PRESETS: dict[str, dict[str, tuple[Any, str]]] = {
    name: {
        field: (value, f"{preset['source']}, {place}")
        for field, (value, place) in preset["values"].items()
    }
    for name, preset in data_yaml("grpo_ext.objective", "presets.yaml").items()
}
