"""Play episodes with an engine that completes one turn per request."""

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
    """Play the episodes of a request on all ranks together.

    An engine that several ranks share divides its answers equally, so each rank requests the same
    number of turns: a rank whose episodes have ended requests unused ones. A request is for the
    smallest number of tokens that any episode may still have; a turn that is not complete then
    continues with the next request.

    Args:
        request: a request with episodes.
        turn: completes lists of tokens by a maximum number of tokens; all ranks call it, with the
            same number of lists.
    """
    episodes = request.episodes
    logps: list[list[float | None]] = [[] for _ in episodes]
    while True:
        waiting = [i for i, episode in enumerate(episodes) if not episode.ended]
        num_turns = max(gather_object([len(waiting)]))
        if num_turns == 0:
            break
        contexts = []
        for i in waiting:
            read_answer(episodes[i], logps[i])
            contexts.append(request.prompt_ids[i] + episodes[i].ids)
        max_tokens = min(gather_object([episodes[i].turn_left() for i in waiting]))
        contexts += [request.prompt_ids[0]] * (num_turns - len(waiting))
        turns, turn_logps = turn(contexts, max_tokens)
        # the turns after those of `waiting` are unused
        for i, tokens, values in zip(waiting, turns, turn_logps, strict=False):
            logps[i] += values[: write_turn(episodes[i], tokens, max_tokens)]
        hear([episodes[i] for i in waiting])
    return of_played(request, logps)


def of_played(request: Request, logps: list[list[float | None]]) -> Generation:
    """Return the generation of a request whose episodes have ended.

    Args:
        request: a request with episodes.
        logps: the log-prob of each token; `None` for tokens of environments.
    """
    generation = Generation(
        prompt_ids=request.prompt_ids,
        completion_ids=[episode.ids for episode in request.episodes],
        policy_step=request.policy_step,
        sampling_logps=logp_tensors(logps),
    )
    return of_episodes(generation, request.episodes)


def read_answer(episode: Episode, logps: list[float | None]) -> None:
    """Append the tokens of the last answer to an episode; they have no log-probs."""
    while episode.pending:
        episode.read()
        logps.append(None)


def hear(episodes: list[Episode]) -> None:
    """Wait for the answers to turns that `write_turn` has ended.

    Async environments work at the same time.
    """
    for episode in episodes:
        if episode.asking:
            episode.hear()


def write_turn(episode: Episode, tokens: list[int], max_tokens: int) -> int:
    """Add the answer to a request for a turn to an episode.

    Args:
        episode: that the turn belongs to.
        tokens: of the answer.
        max_tokens: that the request allowed.

    Returns:
        The number of tokens that belong to the turn.
    """
    for count, token in enumerate(tokens, 1):
        if episode.write(token):
            episode.ask()
            return count
    if len(tokens) < max_tokens:  # the engine reached its limit
        episode.cut_off()
    return len(tokens)
