"""The first failure of a broken environment names its file and line, and a run with it ends."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from grpo_ext.environments.failures import EnvironmentFailure, refuse_many
from grpo_ext.environments.start_episodes import beginning
from tests.support.broken_environments import BROKEN, write

ARGS = SimpleNamespace(max_completion_length=100, chat_template_kwargs=None, generation_kwargs=None)
ROWS = [{"prompt": [{"role": "user", "content": "Play."}], "seed": seed} for seed in (1, 2)]
ONLY_LATER = "from the second turn on"


@pytest.mark.parametrize("name", [name for name in BROKEN if name != ONLY_LATER])
def test_the_first_failure_is_named_and_the_run_ends(name, tiny_folder, tmp_path, caplog):
    methods, words = BROKEN[name]
    file = write(tmp_path, methods)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    error = words.rpartition("that was tried: ")[2]
    reason = "" if error == "reset fails on every call" else re.escape(error)
    place = rf"{reason}(?s:.*)\({re.escape(str(file))}:\d+, in \w+\)"

    def play() -> None:
        begin = beginning({"": f"{file}:World"}, tokenizer, [tokenizer.eos_token_id], ARGS)
        with caplog.at_level(logging.WARNING, "grpo_ext.environments.failures"):
            episodes = begin(ROWS)
            for episode in episodes:
                episode.take_turn({"role": "assistant", "content": "a turn"}, "a turn")
                episode.hear()
                episode.columns()
        failures = episodes[0].rules.failures
        refuse_many(failures.report())

    if name in ("options", "tools", "async tools", "tools by name"):
        with pytest.raises(ValueError, match=place):
            play()
        return
    with pytest.raises(EnvironmentFailure, match=r"failed on every call"):
        play()
    assert re.search(place, caplog.text)
