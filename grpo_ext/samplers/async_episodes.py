"""Play episodes with a server; each requests its next turn once its environment has answered."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from grpo_ext.environments.episode import Episode
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn, hear
from grpo_ext.samplers.server_failure import ServerFailure

MAX_REQUESTS = 256  # maximum number of concurrent requests of one rank


def play_as_ready(
    episodes: list[Episode],
    prompt_ids: list[list[int]],
    played: list[PlayedTokens],
    complete: Callable[[list[int], int], Turn],
) -> ServerFailure | None:
    """Play episodes until all have ended or a request fails.

    After a failure, requests that were already sent are completed, but no new ones are sent. Call
    the function again to continue the episodes.

    Requests are sent from threads. Synchronous environment code runs in the calling thread, because
    deadlines work only in the main thread, and therefore delays the other episodes. Async code, and
    code in the recipe's `threads`, runs in the background and does not delay other episodes.

    Args:
        episodes: this rank's episodes.
        prompt_ids: the token ids of each episode's prompt.
        played: the log-probs and kept tokens of each episode so far; extended in place.
        complete: a function that completes a list of tokens, given the maximum number of new
            tokens; it is called from several threads.

    Returns:
        The failure of the first request that failed; `None` if all requests succeeded.
    """
    running: dict[Future[Turn], tuple[int, int]] = {}
    asking: list[int] = []  # episodes whose environment has a turn to answer
    failure: ServerFailure | None = None
    with ThreadPoolExecutor(max(1, min(len(episodes), MAX_REQUESTS))) as pool:

        def request_turn(i: int) -> None:
            episode = episodes[i]
            played[i].read(episode)
            max_tokens = episode.turn_left()
            future = pool.submit(complete, prompt_ids[i] + episode.ids, max_tokens)
            running[future] = (i, max_tokens)

        for i, episode in enumerate(episodes):
            if not episode.ended:
                request_turn(i)
        while running or asking:
            wait_for_any(running, [episodes[i] for i in asking])
            for future in [future for future in running if future.done()]:
                i, max_tokens = running.pop(future)
                try:
                    turn = future.result()
                except Exception as error:  # a connection error, or a status other than 200
                    failure = failure or ServerFailure.of(error)
                    continue
                played[i].write(episodes[i], turn, max_tokens)
                asking.append(i)
            answered = [i for i in asking if not episodes[i].world.unfinished()]
            asking = [i for i in asking if i not in answered]
            hear([episodes[i] for i in answered])
            for i in answered:
                if not episodes[i].ended and failure is None:
                    request_turn(i)
    return failure


def wait_for_any(turns: Collection[Future[Turn]], asking: Sequence[Episode]) -> None:
    """Wait until the engine completes a turn or an environment call returns.

    Return at once if an environment's answer is already complete, or if there is nothing to wait
    for.

    Args:
        turns: the turns that the engine is generating. If there are none, the time spent waiting
            counts as environment time.
        asking: the episodes whose environment has a turn to answer.
    """
    calls: list[Future[Any]] = []
    for episode in asking:
        unfinished = episode.world.unfinished()
        if not unfinished:
            return
        calls += unfinished
    if turns:
        wait([*turns, *calls], return_when=FIRST_COMPLETED)
    elif calls:
        with asking[0].rules.stopwatch:
            wait(calls, return_when=FIRST_COMPLETED)
