"""Log-probs of the draws, noted while tokens are sampled."""

from __future__ import annotations

import torch

from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams


def test_log_probs_are_noted_of_a_share_of_the_rows():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 6, 11, generator=g)
    tokens = torch.randint(11, (6, 3), generator=g)
    recorder = Recorder(SamplingParams(), every=4)
    for step in range(3):
        recorder(tokens[:, max(step - 1, 0)].unsqueeze(1), scores[step])
    _, rows = recorder.rows(tokens.tolist())
    for row, values in enumerate(rows):
        if row % 4:
            assert values.isnan().all()
        else:
            wanted = [scores[step, row].log_softmax(-1)[tokens[row, step]] for step in range(3)]
            assert torch.allclose(values, torch.stack(wanted))
