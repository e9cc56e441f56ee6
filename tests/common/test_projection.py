"""The setting of the process that `bfloat16_units` changes is restored."""

from __future__ import annotations

import pytest
import torch

from grpo_ext.common.projection import bfloat16_units


def setting() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


def test_contexts_that_overlap_restore_the_setting_at_the_last_end():
    before = setting()
    first = bfloat16_units()
    second = bfloat16_units()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert setting() == "bf16"
    second.__exit__(None, None, None)
    assert setting() == before


def test_an_error_restores_the_setting():
    before = setting()
    with pytest.raises(ZeroDivisionError), bfloat16_units():
        assert setting() == "bf16"
        _ = 1 / 0
    assert setting() == before
