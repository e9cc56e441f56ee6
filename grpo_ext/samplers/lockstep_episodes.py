"""Play episodes with an engine that completes one turn per request, after the tokens of all turns
before.
"""

from collections.abc import Callable

from accelerate.utils import gather_object

from grpo_ext.environments.episode import Episode, of_episodes
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.rollout_function import logp_tensors
from grpo_ext.step.records import Generation

# tokens, and the log-prob of each; `None`: unknown
Completed = tuple[list[list[int]], list[list[float | None]]]


def play_by_turns(
    request: Request, turn: Callable[[list[list[int]], int], Completed]
) -> Generation:
    """Play the episodes of a request on all ranks together: each rank requests the same number of
    turns.

    An engine that several ranks share divides its answers equally, so a rank whose episodes have
    ended requests unused turns. A request is for the smallest number of tokens that any episode may
    still have; a turn that is not complete then continues with the next request.

    Args:
        request: a request with episodes.
        turn: completes lists of tokens by a maximum number of tokens; all ranks call it, with the
            same number of lists.
    """
    episodes = request.episodes
    logps: list[list[float | None]] = [[] for _ in episodes]
    while True:
        waiting = [i for i, episode in enumerate(episodes) if not episode.ended]
        most = max(gather_object([len(waiting)]))
        if not most:
            break
        for i in waiting:
            read_answer(episodes[i], logps[i])
        left = min(gather_object([episodes[i].turn_left() for i in waiting]))
        contexts = [request.prompt_ids[i] + episodes[i].ids for i in waiting]
        ids, logprobs = turn(contexts + [request.prompt_ids[0]] * (most - len(waiting)), left)
        for i, tokens, values in zip(waiting, ids, logprobs, strict=False):
            logps[i] += values[: write_turn(episodes[i], tokens, left)]
        hear([episodes[i] for i in waiting])
    return of_played(request, logps)


def of_played(request: Request, logps: list[list[float | None]]) -> Generation:
    """Return the generation of a request whose episodes have ended, with the log-prob of each token
    that the model wrote.
    """
    found = Generation(
        prompt_ids=request.prompt_ids,
        completion_ids=[episode.ids for episode in request.episodes],
        policy_step=request.policy_step,
        sampling_logps=logp_tensors(logps),
    )
    return of_episodes(found, request.episodes)


def read_answer(episode: Episode, logps: list[float | None]) -> None:
    """Append the tokens of the last answer to an episode; they have no log-probs."""
    while episode.pending:
        episode.read()
        logps.append(None)


def hear(episodes: list[Episode]) -> None:
    """Wait for the answers to turns that `write_turn` has ended; async environments work at the
    same time.
    """
    for episode in episodes:
        if episode.asking:
            episode.hear()


def write_turn(episode: Episode, tokens: list[int], asked: int) -> int:
    """Add the answer to a request for `asked` tokens to an episode; return how many tokens belong
    to the turn.
    """
    for count, token in enumerate(tokens, 1):
        if episode.write(token):
            episode.ask()
            return count
    if len(tokens) < asked:  # the engine reached its limit
        episode.cut_off()
    return len(tokens)
