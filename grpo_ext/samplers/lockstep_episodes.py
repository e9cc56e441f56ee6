"""Play episodes with an engine that completes one turn per request."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object

from grpo_ext.environments.episode import Episode, hear_all
from grpo_ext.environments.played_episodes import of_episodes
from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.rollout_function import logp_tensors
from grpo_ext.step.records import Generation


@dataclass(frozen=True)
class Turn:
    """The tokens that an engine generated after one context."""

    ids: list[int]
    logps: list[float | None]  # the log-prob of each token; `None` if unknown
    # the tokens that truncation kept at each position; `None` if unknown
    kept: KeptSet | None = None


@dataclass
class PlayedTokens:
    """The log-probs and kept tokens of an episode so far; the tokens are in `Episode.ids`."""

    #: the size of the vocabulary; `None` if the engine returns no kept tokens
    vocab_size: int | None = None
    #: the log-prob of each token; `None` for tokens of the environment
    logps: list[float | None] = field(default_factory=list)
    #: the kept tokens at all positions; where the environment wrote a token, only that token
    kept: list[KeptSet] = field(default_factory=list)

    def read(self, episode: Episode) -> None:
        """Append the environment's pending answer, if any, to the episode and to this object."""
        answer = list(episode.pending)
        while episode.pending:
            episode.read()
        self.logps += [None] * len(answer)
        if self.vocab_size is not None:
            self.kept.append(KeptSet.of_tokens(answer, self.vocab_size))

    def write(self, episode: Episode, turn: Turn, max_tokens: int) -> None:
        """Append a generated turn to the episode, and its log-probs and kept tokens to this object.

        Tokens after the end of the turn, or after its limit, are dropped from both.

        Args:
            episode: the episode that the turn belongs to.
            turn: the turn that the engine generated.
            max_tokens: the maximum number of new tokens in the request to the engine.
        """
        count = write_turn(episode, turn.ids, max_tokens)
        self.logps += turn.logps[:count]
        if self.vocab_size is not None:
            assert turn.kept is not None
            self.kept.append(turn.kept.select(torch.arange(count)))

    def kept_set(self) -> KeptSet | None:
        """Return the kept tokens at all positions, or `None` if the engine does not return them."""
        if self.vocab_size is None:
            return None
        nothing = KeptSet.from_ids([], self.vocab_size)
        return KeptSet.cat([nothing, *self.kept])


def play_by_turns(
    request: Request,
    turns_of: Callable[[list[list[int]], int], list[Turn]],
    vocab_size: int | None = None,
) -> Generation:
    """Play the episodes of a request in lockstep, and return the generation.

    All ranks must call this function.

    An engine shared by several ranks must return the same number of completions to each, so all
    ranks request the same number of turns: a rank with fewer running episodes adds requests and
    ignores their completions. The token limit of a request is the largest number of tokens that any
    episode on any rank has left for its turn; tokens beyond an episode's own limit are dropped.

    Args:
        request: a request with episodes.
        turns_of: a function that completes lists of tokens, given the maximum number of new tokens;
            all ranks call it with the same number of lists.
        vocab_size: the size of the vocabulary; `None` if the engine returns no kept tokens.
    """
    episodes = request.episodes
    played = [PlayedTokens(vocab_size) for _ in episodes]
    while True:
        waiting = [i for i, episode in enumerate(episodes) if not episode.ended]
        num_turns = max(gather_object([len(waiting)]))
        if num_turns == 0:
            break
        contexts = []
        for i in waiting:
            played[i].read(episodes[i])
            contexts.append(request.prompt_ids[i] + episodes[i].ids)
        max_tokens = max(gather_object([episodes[i].turn_left() for i in waiting]))
        contexts += [request.prompt_ids[0]] * (num_turns - len(waiting))
        turns = turns_of(contexts, max_tokens)
        # turns beyond those of `waiting` are unused
        for i, turn in zip(waiting, turns, strict=False):
            played[i].write(episodes[i], turn, max_tokens)
        hear([episodes[i] for i in waiting])
    return of_played(request, played)


def of_played(request: Request, played: list[PlayedTokens]) -> Generation:
    """Return the generation for a request whose episodes have ended.

    Args:
        request: the request with the episodes.
        played: the log-probs and kept tokens of each episode.
    """
    kept = []
    for tokens in played:
        kept_set = tokens.kept_set()
        if kept_set is not None:
            kept.append(kept_set)
    generation = Generation(
        prompt_ids=request.prompt_ids,
        completion_ids=[episode.ids for episode in request.episodes],
        policy_step=request.policy_step,
        sampling_logps=logp_tensors([tokens.logps for tokens in played]),
        kept=kept or None,
    )
    return of_episodes(generation, request.episodes)


def hear(episodes: list[Episode]) -> None:
    """Wait for the environments' answers to finished turns; each episode then continues or ends.

    Episodes without a finished turn are skipped. Environments whose code is async or runs in
    threads work on their answers at the same time.
    """
    hear_all([episode for episode in episodes if episode.asking])


def write_turn(episode: Episode, tokens: list[int], max_tokens: int) -> int:
    """Append an engine's tokens to the current turn of an episode.

    If the tokens finish the turn, it is passed to the environment; `hear` waits for the answer. If
    the engine stopped before `max_tokens` without ending the turn, the episode is cut off. Tokens
    after the end of the turn, or after its limit, are dropped.

    Args:
        episode: the episode that the turn belongs to.
        tokens: the tokens that the engine generated.
        max_tokens: the maximum number of new tokens in the request to the engine.

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
