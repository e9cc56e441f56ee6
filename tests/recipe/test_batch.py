"""Batch arithmetic against TRL's own: what we refuse it refuses, and what we propose it takes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_ext import GRPOExtConfig
from grpo_ext.recipe.batch import (
    Batch,
    batch_of,
    evaluation_of_parts_of_groups,
    generation_of_parts_of_groups,
    nearest_fits,
)
from grpo_ext.recipe.rules import flat_values
from tests.support.runaway import no_runaway

SIZES = st.integers(1, 24)


def config(tmp_path_factory, **values):
    folder = tmp_path_factory.getbasetemp()
    return GRPOExtConfig(str(folder), use_cpu=True, bf16=False, report_to="none", **values)


@st.composite
def batches(draw):
    slices = draw(st.sampled_from(["", "steps_per_generation", "generation_batch_size"]))
    values = {slices: draw(st.integers(1, 60))} if slices else {}
    return Batch(draw(SIZES), 1, draw(SIZES), draw(st.integers(2, 24)), **values)


def as_values(batch):
    given = {
        f.name: getattr(batch, f.name)
        for f in dataclasses.fields(batch)
        if f.name != "num_processes"
    }
    return {key: value for key, value in given.items() if value is not None}


@settings(max_examples=80, deadline=None)
@given(batches())
def test_what_is_refused_is_what_trl_refuses(tmp_path_factory, batch):
    values = as_values(batch)
    problems = list(
        generation_of_parts_of_groups(
            flat_values({"training": values}, {"training": GRPOExtConfig}), 1
        )
    )
    if problems:
        assert not batch.fits
        with pytest.raises(ValueError, match="divisible"):
            config(tmp_path_factory, **values)
    else:
        args = config(tmp_path_factory, **values)
        assert (args.generation_batch_size, args.steps_per_generation) == (
            batch.completions,
            batch.slices,
        )


@settings(max_examples=60, deadline=None)
@given(batches())
def test_every_proposal_fits_and_they_are_the_nearest(tmp_path_factory, batch):
    assume(not batch.fits)
    changes = nearest_fits(batch)
    assert changes
    for change in changes:
        [(key, value)] = change.items()
        args = config(tmp_path_factory, **{**as_values(batch), **change})
        assert args.generation_batch_size % args.num_generations == 0
        old = getattr(batch, key)
        nearer = [
            n
            for n in range(min(old, value) + 1, max(old, value))
            if n > 1 or key != "num_generations"
        ]
        others = [c[key] for c in changes if key in c]
        assert all(n in others or not dataclasses.replace(batch, **{key: n}).fits for n in nearer)


def test_a_large_prime_is_answered_at_once():
    with no_runaway():
        assert {"num_generations": 8} in nearest_fits(Batch(8, 1, 1, 100_003))


@settings(max_examples=60, deadline=None)
@given(size=SIZES, group=st.integers(2, 24))
def test_eval_batches_are_refused_as_trl_does(tmp_path_factory, size, group):
    values = {
        "per_device_eval_batch_size": size,
        "num_generations_eval": group,
        "eval_strategy": "steps",
    }
    flat = flat_values({"training": values}, {"training": GRPOExtConfig})
    problems = list(evaluation_of_parts_of_groups(flat, 1))
    assert bool(problems) == bool(size % group)
    if problems:
        with pytest.raises(ValueError, match="eval batch size"):
            config(tmp_path_factory, **values)
        for word in problems[0].message.split("`")[1::2]:
            key, _, proposed = word.partition(": ")
            config(tmp_path_factory, **{**values, key: int(proposed)})


def test_the_defaults_of_the_fields_count():
    flat = flat_values({"training": {"num_generations": 4}}, {"training": GRPOExtConfig})
    assert batch_of(flat, 2) == Batch(8, 2, 1, 4)
    assert batch_of(flat, 2).prompts == 4
