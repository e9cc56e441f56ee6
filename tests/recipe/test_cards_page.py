"""The page of settings by card is what the estimates say."""

from __future__ import annotations

import pytest

from grpo_ext.recipe.memory import longest_completion
from tests.recipe.cards_page import PAGE, USED, engine_share, plan_of, settings_for, with_tables

CARD = 24 * 10**9


def test_the_page_is_what_the_estimates_say():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run `make cards`"


def test_the_micro_batch_is_the_largest_that_fits():
    plan = plan_of("Qwen/Qwen3-1.7B", "LoRA")
    settings = settings_for(plan, CARD)
    room = (USED - settings.utilization) * CARD
    assert plan.memory(settings.micro_batch)["total"] <= room
    assert plan.memory(2 * settings.micro_batch)["total"] > room
    longest = longest_completion(plan.size, plan.values, plan.batch, int(room), prompt=256)
    assert settings.longest == longest < plan.longest


@pytest.mark.parametrize("model", ["Qwen/Qwen3-1.7B", "google/gemma-3-1b-it"])
def test_vllm_sleeps_only_where_the_trainer_does_not_fit_beside_it(model):
    plan = plan_of(model, "full")
    for gigabytes in range(20, 100, 4):
        card = gigabytes * 10**9
        settings = settings_for(plan, card)
        beside = plan.memory(1)["total"] + engine_share(plan.size, card) * card <= USED * card
        assert settings is None or settings.sleeps != beside
        assert not beside or settings is not None
