"""Every completion of a server is looked at before it trains.

Number, prompts, tokens, lengths, log-probs.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.vllm.check_completions import completions_fault

PROMPTS = [[1, 2], [3]]
GOOD = {
    "prompt_ids": [[1, 2], [3]],
    "completion_ids": [[5, 6], [7], [9, 9, 9], []],
    "logprobs": [[[-0.5], [-1]], [[0.0]], [[-9999.0], [-0.1], [5e-7]], []],
    "logprob_token_ids": [[[5], [6]], [[7]], [[9], [9], [9]], []],
}
ASKED = {"prompts": PROMPTS, "n": 2, "max_tokens": 3, "num_logprobs": 1, "vocabulary": 10}


def test_what_was_asked_for_passes():
    assert completions_fault(GOOD, **ASKED) is None
    more = {**GOOD, "logprobs": [[[-0.1, -0.5]] * len(row) for row in GOOD["completion_ids"]]}
    more["logprob_token_ids"] = [[[0, token] for token in row] for row in GOOD["completion_ids"]]
    assert completions_fault(more, **{**ASKED, "num_logprobs": 3}) is None
    none = {**GOOD, "logprobs": None, "logprob_token_ids": None}
    assert completions_fault(none, **{**ASKED, "num_logprobs": None}) is None


def changed(key, change):
    found = copy.deepcopy(GOOD)
    change(found[key])
    return found


ROWS = "completion_ids"
LOGPS = "logprobs"
NAMES = "logprob_token_ids"
WRONG = {
    "fewer": (changed(ROWS, lambda rows: rows.pop()), "3 completions, but 4 were requested"),
    "more": (changed(ROWS, lambda rows: rows.append([1])), "5 completions, but 4 were requested"),
    "of_other_prompts": (
        changed("prompt_ids", lambda prompts: prompts.reverse()),
        "they are completions of other prompts",
    ),
    "of_equal_prompts": (
        changed("prompt_ids", lambda prompts: prompts[0].__setitem__(0, 1.0)),
        "prompt_ids.0.0: ",
    ),
    "of_true_prompts": (
        changed("prompt_ids", lambda prompts: prompts[0].__setitem__(0, True)),
        "prompt_ids.0.0: ",
    ),
    "too_long": (
        changed(ROWS, lambda rows: rows[2].append(9)),
        "completion 2 has 4 tokens, but at most 3",
    ),
    "beyond_the_vocabulary": (
        changed(ROWS, lambda rows: rows[0].__setitem__(1, 10)),
        "completion 0 has token ids outside",
    ),
    "negative": (changed(ROWS, lambda rows: rows[1].__setitem__(0, -1)), "completion_ids.1.0: "),
    "fraction": (changed(ROWS, lambda rows: rows[1].__setitem__(0, 7.0)), "completion_ids.1.0: "),
    "truth": (changed(ROWS, lambda rows: rows[1].__setitem__(0, True)), "completion_ids.1.0: "),
    "text": (changed(ROWS, lambda rows: rows[1].__setitem__(0, "7")), "completion_ids.1.0: "),
    "too_few_logps": (
        changed(LOGPS, lambda rows: rows[0].pop()),
        "the log-probs of completion 0 do not match its tokens",
    ),
    "logps_of_others": (
        changed(NAMES, lambda rows: rows[1][0].__setitem__(0, 8)),
        "the log-probs of completion 1 do not match",
    ),
    "more_logps": (
        changed(NAMES, lambda rows: rows[1][0].append(8)),
        "the log-probs of completion 1 do not match",
    ),
    **{
        f"logp_{value}": (
            changed(LOGPS, lambda rows, v=value: rows[1][0].__setitem__(0, v)),
            "logprobs.1.0.0: ",
        )
        for value in (float("nan"), float("inf"), float("-inf"), None, "-1", True, 0.5)
    },
}


@pytest.mark.parametrize("kind", WRONG)
def test_anything_else_is_told(kind):
    found, words = WRONG[kind]
    assert words in completions_fault(found, **ASKED)


@pytest.mark.parametrize("missing", GOOD)
def test_a_part_that_is_missing_is_told(missing):
    found = {name: value for name, value in GOOD.items() if name != missing}
    assert missing in completions_fault(found, **ASKED)
    if missing in (LOGPS, NAMES):
        assert "log-probs are missing" in completions_fault({**GOOD, missing: None}, **ASKED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.floats() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(GOOD)), JSON, st.integers(0, 3), st.booleans())
def test_nothing_that_passes_holds_a_wrong_token_or_log_prob(part, value, row, whole):
    """Anything in place of a part, or of one row of it: told, or as good."""
    found = copy.deepcopy(GOOD)
    if whole:
        found[part] = value
    else:
        found[part][row % len(found[part])] = value
    if completions_fault(found, **ASKED):
        return
    assert found["prompt_ids"] == PROMPTS and len(found["completion_ids"]) == 4
    for tokens, logps in zip(found["completion_ids"], found["logprobs"], strict=True):
        assert len(tokens) == len(logps) <= 3
        assert all(type(token) is int and 0 <= token < 10 for token in tokens)
        assert all(len(told) == 1 and -float("inf") < told[0] < 1e-3 for told in logps)
