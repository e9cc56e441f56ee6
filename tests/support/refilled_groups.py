"""What `scripted_groups` trains on when groups without signal are refilled, worked out by hand, and
the check of it.
"""

from __future__ import annotations

from tests.support.fixed_completions import apart
from tests.support.scripted_groups import oracle

# Prompts of each step and the step whose policy sampled them; worked out by hand from `DEAD`.
# Prompts 1 to 12 come from the data loader, further ones from 13 on, and as many more are drawn as
# had no signal so far: step 0: 1 2 3 4 of which 1 4, then 13 14 15 16 of which 13 15 16; 16 is one
# too many step 1: 5 6 7 (8 waits) of which 5 6, then 8 17; 17 is one too many
# step 2: 9 10 11, all with signal (12 waits)
CALLS = [[1, 2, 3, 4], [13, 14, 15, 16], [5, 6, 7], [8, 17], [9, 10, 11]]
PLAN = [
    [(1, 0), (4, 0), (13, 0), (15, 0)],
    [(16, 0), (5, 1), (6, 1), (8, 1)],
    [(17, 1), (9, 2), (10, 2), (11, 2)],
]


def check_steps(folder, steps, plan, **settings):
    """Compare the gradients of all steps with those of the planned groups alone.

    Args:
        steps: gradients and weights before each step, as `scripted_groups.train` returns them.
        plan: for each step, its prompts and the step whose weights sampled their completions.
        settings: of `scripted_groups.oracle`.
    """
    weights = [before for _, before in steps]
    assert len(steps) == len(plan)
    for (gradient, before), groups in zip(steps, plan, strict=True):
        sampled_by = [(number, weights[step]) for number, step in groups]
        assert apart(gradient, oracle(folder, sampled_by, before, **settings)) < 1e-5
