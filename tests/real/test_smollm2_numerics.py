"""`grpo-ext numerics` of a pretrained model: exact in float32, and rounded in bfloat16."""

from __future__ import annotations

import json

import pytest

from grpo_ext.cli.main import main

SMALL = ["--completions", "8", "--max_completion_length", "12", "--top_k", "50", "--json"]


def numerics(capsys, model, *words):
    command = ["numerics", "--config", "instructions/smollm2", "--model_name_or_path", str(model)]
    code = main([*command, *SMALL, *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_each_comparison_of_a_type_is_as_far_apart_as_its_rounding(smollm2, capsys, half):
    types = [] if half else ["--dtype", "float32", "--bf16", "false"]
    code, found = numerics(capsys, smollm2, *types)
    distances = {row["name"]: row["distance"] for row in found["comparisons"] if row["distance"]}
    assert len(distances) == (11 if half else 10)  # a float32 copy of half types
    largest = max(apart["largest"] for apart in distances.values())
    if half:
        assert 1e-3 < largest < 1.0
        assert distances["float32 copy against the trainer's step"]["mean"] > 1e-3
    else:
        assert code == 0 and largest < 1e-4
        assert found["edges"]["beyond"] == 0.0
