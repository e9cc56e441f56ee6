"""`partial_rollouts`: completions in rounds, through a scripted sampler."""

from __future__ import annotations

import datetime
import decimal

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.samplers.base import Request, Sampler, SamplerAbilities
from grpo_ext.samplers.partial import PartialRollout, PartialSampler
from grpo_ext.step.judge import EndRule
from grpo_ext.step.records import Generation, Ranks
from grpo_ext.trainer.state import load_plain

END = 0
LIMIT = 12
ROWS = 4
SIZE = 2


class Scripted(Sampler):
    """Completes the prompt [p] by p, p, p ...

    And the end token, `lengths[p]` tokens in all; the log-prob of token t is -t.
    """

    name = "scripted"
    abilities = SamplerAbilities()

    def __init__(self, lengths):
        self.lengths, self.most, self.asked = lengths, [], []

    def sample(self, request):
        assert request.prompt_ids
        self.most.append(request.max_new_tokens)
        self.asked.append(request.prompt_ids)
        ids = [
            self._more(row[0], len(row) - 1, request.max_new_tokens) for row in request.prompt_ids
        ]
        starts = [len(row) - 1 for row in request.prompt_ids]
        logps = [
            -torch.arange(start, start + len(row)).float()
            for start, row in zip(starts, ids, strict=True)
        ]
        return Generation(request.prompt_ids, ids, request.policy_step, logps)

    def _more(self, p, begun, most):
        end = self.lengths[p]
        return [END if t == end - 1 else p for t in range(begun, min(end, begun + most, LIMIT))]


def request(prompts, step):
    rows = [{"prompt": p} for p in prompts for _ in range(SIZE)]
    return Request([], [[row["prompt"]] for row in rows], SIZE, step, rows=rows)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, LIMIT + 5), min_size=4, max_size=16),
    st.sampled_from([1, 2, 3, 4, 6, 12]),
)
def test_rows_come_out_once_whole_and_as_if_sampled_at_one_go(lengths, tokens):
    lengths = lengths[: len(lengths) // 2 * 2]
    inner = Scripted({p: length for p, length in enumerate(lengths, 1)})
    sampler = PartialSampler(inner, EndRule(frozenset([END]), LIMIT), tokens, ROWS, SIZE, Ranks())
    batches = [range(i, i + 2) for i in range(1, len(lengths) + 1, 2)]
    found = []
    for step in range(len(batches)):
        new = batches[step + 1 : step + 2] if sampler.under_way else batches[step : step + 2]
        sampler.submit(request([p for batch in new for p in batch], step))
        made = sampler.collect()
        assert len(made.completion_ids) == ROWS
        found += zip(
            made.rows, made.completion_ids, made.policy_step, made.sampling_logps, strict=True
        )
        groups = [row["prompt"] for row in made.rows]
        assert groups[::2] == groups[1::2]
    assert sorted(row["prompt"] for row, *_ in found) == sorted(
        [*range(1, len(lengths) + 1)] * SIZE
    )
    assert not sampler.under_way and set(inner.most) == {tokens}
    for row, ids, steps, logps in found:
        end = lengths[row["prompt"] - 1]
        assert ids == [END if t == end - 1 else row["prompt"] for t in range(min(end, LIMIT))]
        assert steps == sorted(steps) and len(steps) == len(ids)
        assert logps.tolist() == [-t for t in range(len(ids))]
        sizes = [steps.count(step) for step in set(steps)]
        assert all(size % tokens == 0 for size in sizes[:-1])


def test_a_long_completion_holds_up_its_own_group_only():
    inner = Scripted({1: 12, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2})
    sampler = PartialSampler(inner, EndRule(frozenset([END]), LIMIT), 4, ROWS, SIZE, Ranks())
    sampler.submit(request([1, 2, 3, 4], 0))
    first = sampler.collect()
    assert [row["prompt"] for row in first.rows] == [2, 2, 3, 3] and len(inner.asked) == 1
    sampler.submit(request([5, 6], 1))
    assert [row["prompt"] for row in sampler.collect().rows] == [4, 4, 5, 5]
    assert inner.asked[1] == [[1] * 5, [1] * 5, [5], [5], [6], [6]]
    sampler.submit(request([], 2))
    last = sampler.collect()
    assert [row["prompt"] for row in last.rows] == [1, 1, 6, 6]
    assert last.policy_step[0] == [0] * 4 + [1] * 4 + [2] * 4 and last.policy_step[2] == [1, 1]


def test_a_rank_with_nothing_to_do_asks_for_as_many_rows_as_the_others():
    """Another rank has three open rows: a server wants equally many of each."""
    inner = Scripted({1: 2, 2: 2})
    ranks = Ranks(
        0,
        2,
        gather=lambda t: torch.cat([t, torch.zeros_like(t)]),
        gather_objects=lambda given: [*given, 7],
    )
    sampler = PartialSampler(inner, EndRule(frozenset([END]), LIMIT), 4, ROWS, SIZE, ranks)
    sampler.submit(request([1, 2], 0))
    assert [row["prompt"] for row in sampler.collect().rows] == [1, 1, 2, 2]
    assert inner.asked == [[[1], [1], [2], [2], [1], [1], [1]]]


def test_a_checkpoint_holds_what_is_under_way_with_its_row(tmp_path):
    row = {
        "prompt": "p",
        "at": datetime.datetime(2026, 1, 2),
        "price": decimal.Decimal("1.5"),
        "tags": ["a", None],
        "raw": b"x",
    }
    made = [PartialRollout(row, [5], [6, 7], [0, 1], [torch.tensor([-1.0]), torch.tensor([-2.0])])]
    torch.save(made, tmp_path / "state.pt")
    assert load_plain(tmp_path / "state.pt") == made
