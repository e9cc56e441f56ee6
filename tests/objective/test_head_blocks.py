"""A pass in several blocks of rows: each block has the kept tokens of its own positions."""

from __future__ import annotations

import pytest
import torch

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import Head


@pytest.mark.parametrize("told", [True, False])
def test_blocks_score_as_the_whole_does(told):
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 8, generator=g)
    weight = torch.randn(30, 8, generator=g)
    targets = torch.randint(30, (7,), generator=g)
    params = SamplingParams(top_k=4)
    whole = Head(params)
    logps, entropies = whole(hidden, weight, None, targets, LogitTransform())
    given = KeptSet.cat(whole.used) if told else None
    head = Head(params, given)
    parts = []
    for block in (slice(0, 3), slice(3, 7)):
        parts.append(head(hidden[block], weight, None, targets[block], LogitTransform()))
    assert torch.allclose(torch.cat([part[0] for part in parts]), logps, atol=1e-5)
    assert torch.allclose(torch.cat([part[1] for part in parts]), entropies, atol=1e-5)
    assert torch.equal(KeptSet.cat(head.used).mask(), KeptSet.cat(whole.used).mask())
