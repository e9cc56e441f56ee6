"""The pretrained model of these tests; without its wheel they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_ext.demo.smollm2 import WheelMissing, save_smollm2, wheel_folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2-135M-Instruct in float32 and its tokenizer."""
    try:
        wheel_folder()
    except WheelMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("real") / "model"
    save_smollm2(folder)
    return folder
