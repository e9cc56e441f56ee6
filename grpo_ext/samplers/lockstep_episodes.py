"""Play episodes with an engine that completes one turn per request."""

from collections.abc import Callable

from accelerate.utils import gather_object

from grpo_ext.environments.episode import Episode, of_episodes
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.rollout_function import logp_tensors
from grpo_ext.step.records import Generation

# tokens and their log-probs; `None` if unknown
Completed = tuple[list[list[int]], list[list[float | None]]]


def play_by_turns(
    request: Request, turn: Callable[[list[list[int]], int], Completed]
) -> Generation:
    """Play the episodes of a request in lockstep, and return the generation.

    All ranks must call it.

    An engine shared by several ranks returns the same number of completions to each, so all ranks
    request the same number of turns: a rank with fewer running episodes adds requests and ignores
    their completions. The token limit of a request is the largest that any episode on any rank has
    left, so that each request completes all turns; tokens beyond an episode's own limit are
    dropped.

    Args:
        request: a request with episodes.
        turn: a function that completes lists of tokens, given the maximum number of new tokens;
            all ranks call it with the same number of lists.
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
        max_tokens = max(gather_object([episodes[i].turn_left() for i in waiting]))
        contexts += [request.prompt_ids[0]] * (num_turns - len(waiting))
        turns, turn_logps = turn(contexts, max_tokens)
        # turns beyond those of `waiting` are unused
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
    """Append the environment's pending answer, if any, to an episode; its log-probs are `None`."""
    while episode.pending:
        episode.read()
        logps.append(None)


def hear(episodes: list[Episode]) -> None:
    """Wait for the environments' answers to the turns that `write_turn` has ended.

    Code that runs in the background runs concurrently.
    """
    for episode in episodes:
        if episode.asking:
            episode.hear()


def write_turn(episode: Episode, tokens: list[int], max_tokens: int) -> int:
    """Append the tokens that an engine generated to the current turn of an episode.

    If the engine stopped before `max_tokens` without ending the turn, the episode is cut off.
    Tokens after the end of the turn, or after its limit, are dropped.

    Args:
        episode: the episode that the turn belongs to.
        tokens: the tokens that the engine generated.
        max_tokens: the limit that was requested.

    Returns:
        The number of tokens that belong to the turn.
    """
    for count, token in enumerate(tokens, 1):
        if episode.write(token):
            episode.ask()
            return count
    if len(tokens) < max_tokens:  # the engine reached its own limit
        episode.cut_off()
    return len(tokens)
