"""A prompt that opens the think tag: a reward that wants to see the tag is told what can be written
for it.
"""

from __future__ import annotations

import pytest

from grpo_ext import register
from grpo_ext.preflight.try_rewards import try_rewards
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.reward_specs import resolve_rewards

ROW = {"prompt": "1+1?", "answer": "2"}


def told(spec) -> str:
    findings = Findings()
    rewards, _ = resolve_rewards([spec])
    try_rewards(rewards, ROW, True, findings)
    (problem,) = [p.message for p in findings.problems if "already opens <think>" in p.message]
    return problem


def tagged(completions, **kwargs):
    return [float(text.startswith("<think>")) for text in completions]


def test_a_reward_with_a_prefix_gets_the_option_under_its_registered_name():
    for spec in ("format", {"name": "format", "label": "shape"}):
        assert told(spec).endswith('Use {name: format, prefix: "<think>"}.')


@pytest.mark.parametrize("kind", ["function", "registered"])
def test_a_reward_without_a_prefix_gets_advice_that_it_can_follow(kind):
    spec = tagged
    if kind == "registered":

        @register("wants_a_tag")
        def wants_a_tag(completions):
            return [float(text.startswith("<think>")) for text in completions]

        spec = "wants_a_tag"
    assert told(spec).endswith(
        "Let the reward accept completions that begin inside the tag, or remove <think> from the "
        "end of the prompt."
    )
