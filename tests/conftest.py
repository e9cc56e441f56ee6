"""What many tests stand on: a tiny real tokenizer and model, and folders of data that may or may not be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from registry_state import registry_as_before

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def rewards_stay_in_their_test():
    """A reward that a test's plugin registers is in no other test's catalogue."""
    with registry_as_before():
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained model of 0.1 million parameters and its tokenizer."""
    from grpo_ext.tasks.countdown import Countdown
    from grpo_ext.tiny.demonstrations import countdown_demonstrations
    from grpo_ext.tiny.model import build_model
    from grpo_ext.tiny.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("tiny") / "model"
    task = Countdown(num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30)
    rows = countdown_demonstrations(task, 200)
    tokenizer = build_tokenizer([message["content"] for row in rows for part in row.values() for message in part])
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, hidden_size=64, intermediate_size=128, max_position_embeddings=2048).save_pretrained(folder)
    return folder


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped without it."""
    folder = REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real data is not beside this checkout")
    return folder
