"""Episodes beside a server: each goes on by itself, and a request that fails loses nothing."""

import random
import threading

import pytest
from transformers import AutoTokenizer

from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.samplers.async_episodes import play_as_ready
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn
from tests.support.worlds import Counting


@pytest.fixture
def make(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id])
    rules = EpisodeRules(lambda: Counting(most=3), turn_tokens=4)
    rows = [{"prompt": [{"role": "user", "content": f"Use {n}."}]} for n in range(8)]
    return lambda: [Episode(rules, tokens, 200, row) for row in rows]


class Server:
    """Continues a list of tokens by what the list determines, and fails as often as it is told."""

    def __init__(self, end, failures=0):
        self.end, self.failures, self.lock = end, failures, threading.Lock()

    def __call__(self, ids, most):
        with self.lock:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionError("it was restarted")
        rng = random.Random(repr(ids))
        tokens = [rng.randrange(260, 300) for _ in range(rng.randrange(most))] + [self.end]
        return Turn(tokens[:most], [-float(token) for token in tokens[:most]])


def played(episodes, server):
    """How often episodes were played on after a failure, and the log-probs."""
    tokens = [PlayedTokens() for _ in episodes]
    prompts = [episode.prompt_ids for episode in episodes]
    for attempt in range(20):
        if play_as_ready(episodes, prompts, tokens, server) is None:
            return attempt, [of_episode.logps for of_episode in tokens]
    raise AssertionError("never done")


def test_tokens_keep_their_log_probs_and_masks(make):
    episodes = make()
    attempts, logps = played(episodes, Server(episodes[0].tokens.end))
    assert attempts == 0
    for episode, values in zip(episodes, logps, strict=True):
        assert episode.ended and episode.turns == 3 and 0 in episode.mask
        expected = [
            -float(token) if own else None
            for token, own in zip(episode.ids, episode.mask, strict=True)
        ]
        assert values == expected


def test_a_server_that_fails_changes_nothing(make):
    """The same tokens come as from a server that does not fail.

    No turn is lost, and none is played twice.
    """
    episodes = make()
    others = make()
    attempts, logps = played(episodes, Server(episodes[0].tokens.end, failures=5))
    assert attempts > 0
    assert logps == played(others, Server(others[0].tokens.end))[1]
    assert [e.ids for e in episodes] == [e.ids for e in others]
    assert all(episode.turns == 3 == episode.environment.turns for episode in episodes)
