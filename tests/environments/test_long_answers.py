"""Answers that do not fit are cut off by tokens, and the next turn has room."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl
from transformers import AutoTokenizer

from grpo_ext.environments.base import Environment
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_figures import EpisodeCounts, episode_figures
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.fit_answers import CUT_OFF, cut_text, even_shares, fitted_answer
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.preflight.replay import differences, play_again
from grpo_ext.samplers.lockstep_episodes import hear, write_turn
from tests.support.worlds import Counting, Wordy

TEXT = "12 + 7 = 19, größer 🐍 <|im_end|> " * 20
ROW = {"prompt": [{"role": "user", "content": "Go."}], "seed": 3}


@pytest.fixture(scope="module")
def tokens(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    return TurnTokens(tokenizer, [tokenizer.eos_token_id])


def said(text):
    return {"role": "user", "content": text}


def episode_of(tokens, room=100, make=Wordy, **rules) -> Episode:
    return Episode(EpisodeRules(make, **rules), tokens, room, dict(ROW))


def take(episode, length=3) -> None:
    """Let the model read the answer and write a turn of `length` tokens."""
    while episode.pending:
        episode.read()
    limit = episode.turn_left()
    turn = [300] * (length - 1) + [episode.tokens.end]
    write_turn(episode, turn[:limit], limit)
    hear([episode])


def test_a_text_is_cut_to_its_longest_beginning_that_fits(tokens):
    shortest = len(tokens.plain_tokens(CUT_OFF))
    whole = len(tokens.plain_tokens(TEXT))
    for limit in (*range(shortest, 60), whole - 1):
        text = cut_text(said(TEXT), tokens, limit)
        kept = text.removesuffix(CUT_OFF)
        assert text.endswith(CUT_OFF) and TEXT.startswith(kept)
        assert len(tokens.plain_tokens(text)) <= limit
        longer = TEXT[: len(kept) + 8] + CUT_OFF  # a character may have several tokens
        assert len(tokens.plain_tokens(longer)) > limit
    assert cut_text(said(TEXT), tokens, whole) == TEXT
    assert cut_text(said(TEXT), tokens, 0) == CUT_OFF and cut_text(said("no"), tokens, 0) == "no"


def test_a_text_is_marked_once(tokens):
    text = cut_text(said(TEXT + CUT_OFF), tokens, 50)
    assert text.count(CUT_OFF) == 1 and "(cut" not in text.removesuffix(CUT_OFF)


def test_messages_of_an_answer_share_its_tokens():
    assert even_shares([2, 30, 9], 20) == [2, 9, 9]
    assert even_shares([2, 30, 40], 20) == [2, 9, 9]
    assert even_shares([5, 1], 100) == [5, 1] and even_shares([5, 1], -3) == [0, 0]


def test_tokens_are_those_of_the_text_that_is_left(tokens):
    answer = [{"role": "user", "content": TEXT}]
    for limit in (20, 40, 80):
        fitted = fitted_answer(answer, tokens, ended=True, limit=limit)
        assert fitted.is_cut and len(fitted.ids) <= limit
        assert fitted.ids == tokens.answer(fitted.messages, ended=True)
        assert fitted.messages[0]["content"].endswith(CUT_OFF)


@pytest.mark.parametrize("turn_tokens, kept", [(None, 48), (60, 48), (7, 8)])
def test_the_next_turn_keeps_half_of_the_room_or_its_own_length(tokens, turn_tokens, kept):
    episode = episode_of(tokens, turn_tokens=turn_tokens)
    take(episode, 4)
    left = episode.room - len(episode.ids) - len(episode.pending)
    assert kept <= left <= kept + 4  # a character may have several tokens
    assert not episode.ended and episode.cut_answers == 1
    while episode.pending:
        episode.read()
    assert episode.mask == [1] * 4 + [0] * (len(episode.ids) - 4)
    [said] = [message["content"] for message in episode.messages if message["role"] == "user"]
    assert said.startswith("1 of 4: 12 + 7") and said.endswith(CUT_OFF)
    assert said in str(tokens.tokenizer.decode(episode.ids))


def test_an_answer_that_fits_is_whole(tokens):
    episode = episode_of(tokens, make=Counting)
    take(episode)
    assert episode.messages[-1]["content"] == "1 of 4" and episode.cut_answers == 0


@pytest.mark.parametrize("room", range(1, 120, 3))
def test_every_room_is_kept_and_played_again_alike(tokens, room):
    """Where not even a cut answer fits, the episode ends, and this is counted."""
    episode = episode_of(tokens, room)
    while not episode.ended:
        take(episode)
    assert len(episode.ids) <= room and episode.mask[-1] == 1
    assert episode.end == ("environment" if episode.world.environment.turns == 4 else "room")
    answers = [message for message in episode.messages if message["role"] == "user"]
    assert episode.cut_answers == len(answers)
    figures = episode_figures([EpisodeCounts.of(episode)])
    assert figures["episodes/answers_cut"] == len(answers)
    assert figures["episodes/at_length_limit"] == (episode.end == "room")
    sample = {**episode.logged(), "finish_reason": "length" if episode.truncated else "stop"}
    again = episode_of(tokens, 400)  # the recipe's length; an engine may have had less
    play_again(again, sample)
    assert again.ids == episode.ids and again.mask == episode.mask
    assert differences(again, {}, sample) == []


def test_answers_beyond_the_limit_of_characters_are_counted(tokens):
    episode = episode_of(tokens, 400, answer_characters=30)
    take(episode)
    assert len(episode.messages[-1]["content"]) == 30 + len(CUT_OFF)
    assert episode.cut_answers == 1


class Echo(Environment):
    """Its tools say a long and a short text."""

    def tools(self):
        return [self.long, self.short]

    def long(self) -> str:
        """Say much."""
        return TEXT

    def short(self) -> str:
        """Say little."""
        return "yes"


def test_results_of_several_calls_share_the_room(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text()
    tokens = TurnTokens(tokenizer, [tokenizer.eos_token_id], tools=Echo().tools())
    episode = Episode(EpisodeRules(Echo), tokens, 400, dict(ROW))
    calls = "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        for name in ("long", "short", "long")
    )
    turn = [*tokens.tokens_of(calls), tokens.end]
    episode.play_turn(turn)
    said = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert said[0] == said[2] and said[0].endswith(CUT_OFF) and said[1] == "yes"
    assert len(episode.pending) <= (400 - len(turn)) // 2 < len(episode.pending) + 10
    assert episode.cut_answers == 1
