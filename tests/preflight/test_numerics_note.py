"""`check` notes half types, and names the command that measures them."""

from __future__ import annotations

import pytest

from grpo_ext.preflight.half_types import half_type_key, note_half_types
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings

CASES = [
    ({"dtype": "float32", "bf16": False}, True, None),
    ({"dtype": "bfloat16", "bf16": False}, False, "dtype"),
    ({"dtype": "float32", "bf16": True}, False, "bf16"),
    ({"dtype": "float32", "bf16": False, "fp16": True}, True, "fp16"),
    ({"dtype": "float32", "bf16": False, "fp16": True}, False, None),
    ({"dtype": "float32"}, True, "bf16"),  # TRL's default
    ({"dtype": "float32"}, False, None),
]


@pytest.mark.parametrize("settings, on_gpu, key", CASES)
def test_the_key_of_the_half_type_is_found(settings, on_gpu, key):
    values = load_recipe(None, {"model_name_or_path": "m", **settings}).flat
    assert half_type_key(values, on_gpu) == key


def test_the_note_names_the_command():
    values = load_recipe(None, {"model_name_or_path": "m", "dtype": "bfloat16"}).flat
    findings = Findings()
    note_half_types(values, findings)
    [note] = findings.notes
    assert note.key == "dtype" and "grpo-ext numerics --config" in note.message


@pytest.mark.parametrize("settings", [{}, {"bf16": False}, {"accelerate_config": "fsdp2"}], ids=str)
def test_float16_that_a_cpu_does_not_compute_in_is_noted(settings):
    types = {"dtype": "float32", "use_cpu": True, "fp16": True}
    values = load_recipe(None, {"model_name_or_path": "m", **types, **settings}).flat
    findings = Findings()
    note_half_types(values, findings)
    notes = [(note.key, "Set `bf16: false`" in note.message) for note in findings.notes]
    assert notes == ([] if "accelerate_config" in settings else [("fp16", True)])
