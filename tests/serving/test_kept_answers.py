"""The responses of vLLM's own code, of several versions, as the client reads them.

Kept tokens and log-probs are compared with those that the trainer computes.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch

from grpo_ext.objective.edge_tokens import edge_tokens
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform, sampling_log_probs
from grpo_ext.vllm.http import GENERATE
from tests.support.bad_servers import WELL, engine_client, reply, routes, serving
from tests.support.vllm_answers import (
    PARAMS,
    PROMPTS,
    VOCABULARY,
    N,
    draw,
    head,
    hidden_states,
    recorded,
)

VERSIONS = recorded()
ASKED = {
    "n": N,
    "max_tokens": 9,
    "logprobs": 0,
    "temperature": PARAMS.temperature,
    "top_k": PARAMS.top_k,
    "top_p": PARAMS.top_p,
    "min_p": PARAMS.min_p,
}


def test_the_versions_that_differ_are_recorded():
    assert list(VERSIONS) == ["0.31.0", "0.32.0", "0.33.0"]
    first = {version: bodies[0]["choices"][0] for version, bodies in VERSIONS.items()}
    entries = {version: one["logprobs"]["content"][0] for version, one in first.items()}
    assert entries["0.31.0"]["token"] == f"token_id:{first['0.31.0']['token_ids'][0]}"
    assert entries["0.32.0"]["token_id"] == entries["0.33.0"]["token_id"]
    assert "token" not in entries["0.32.0"]


def ask(bodies, kept=True, prompts=PROMPTS, **more):
    """What the client makes of these responses, its failure, and what it asked for."""
    heard = []

    def generate(body):
        if not body:
            return {}
        heard.append(body)
        return bodies[PROMPTS.index(body["token_ids"])]

    with serving(routes({**WELL, GENERATE: generate})) as base:
        client = engine_client(base, vocabulary=VOCABULARY)
        if kept:
            client.ask_for_kept()
        found = client.generate(prompts=prompts, **ASKED, **more)
        return found, client.failure, heard


@pytest.mark.parametrize("version", VERSIONS)
def test_kept_tokens_and_log_probs_are_the_trainers_own(version):
    found, failure, heard = ask(VERSIONS[version])
    assert failure is None and len(heard) == len(PROMPTS)
    drawn = draw()
    assert found["prompt_ids"] == PROMPTS
    assert found["completion_ids"] == [row.ids for row in drawn]
    for row, kept, logprobs in zip(drawn, found["kept"], found["logprobs"], strict=True):
        contexts = [row.prompt[-1], *row.ids[:-1]]
        hidden = hidden_states()[contexts]
        targets = torch.tensor(row.ids)
        own_logps, _, own_kept = sampling_log_probs(hidden, head(), None, targets, PARAMS)
        assert torch.equal(kept.mask(), own_kept.mask())
        vllm_logps = torch.tensor([one for [one] in logprobs])
        over_theirs, _, _ = sampling_log_probs(hidden, head(), None, targets, PARAMS, kept)
        assert torch.allclose(vllm_logps, own_logps, rtol=0, atol=1e-6)
        assert torch.allclose((over_theirs - vllm_logps).exp(), torch.ones(len(targets)), atol=1e-6)


def test_requests_name_what_vllm_reads():
    _, _, heard = ask(VERSIONS["0.32.0"], generation_kwargs={"seed": 3})
    assert {body["model"] for body in heard} == {"m"}
    for body in heard:
        asked = body["sampling_params"]
        assert {**asked, **ASKED, "seed": 3, "output_kind": 2} == asked
    _, _, heard = ask(VERSIONS["0.32.0"], structured_outputs_regex="[0-9]+")
    assert heard[0]["sampling_params"]["structured_outputs"] == {"regex": "[0-9]+"}


def changed(change):
    bodies = copy.deepcopy(VERSIONS["0.32.0"])
    change(bodies[1]["choices"][1])
    return bodies


WRONG = {
    "no_sets": (lambda one: one.update(sampling_mask=None), "missing for completion 3"),
    "too_few": (lambda one: one["sampling_mask"].pop(), "completion 3 does not have one set"),
    "without_the_token": (
        lambda one: one["sampling_mask"][0].remove(one["token_ids"][0]),
        "completion 3 has a token that its kept tokens do not contain",
    ),
    "empty": (lambda one: one["sampling_mask"].__setitem__(0, []), "do not contain"),
    "beyond_the_vocabulary": (
        lambda one: one["sampling_mask"][0].append(VOCABULARY),
        "kept tokens of completion 3 are outside the model's vocabulary",
    ),
    "negative": (lambda one: one["sampling_mask"][0].append(-1), "kept_ids.3.0."),
    "text": (
        lambda one: one["sampling_mask"][0].append("3"),
        "the response to /inference/v1/generate does not have",
    ),
    "no_log_probs": (lambda one: one.update(logprobs={"content": []}), "log-probs of completion 3"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_sets_never_train(kind):
    change, words = WRONG[kind]
    found, failure, _ = ask(changed(change))
    assert found["completion_ids"] == [] and words in failure.message


def test_a_server_that_returns_none_of_them():
    bodies = copy.deepcopy(VERSIONS["0.32.0"])
    for body in bodies:
        for one in body["choices"]:
            one["sampling_mask"] = None
    found, failure, _ = ask(bodies)
    assert found["completion_ids"] == []
    assert "the tokens that truncation kept are missing" in failure.message
    images = [None] * len(PROMPTS)
    found, failure, _ = ask(bodies, kept=False, features=images)  # TRL's requests with images
    assert failure is None and len(found["completion_ids"]) == N * len(PROMPTS)
    assert "kept" not in found


@pytest.mark.parametrize("status", [403, 404])
def test_a_server_without_the_route_is_told(status):
    def answer(connection, path, headers, body):
        found = WELL.get(path)
        connection.sendall(reply({}, status) if found is None else reply(found))

    with serving(answer) as base:
        client = engine_client(base, vocabulary=VOCABULARY)
        with pytest.raises(ValueError, match="or with --enable-scale-out"):
            client.ask_for_kept()


def test_edge_tokens_are_those_outside_the_own_set():
    hidden = hidden_states()
    targets = torch.arange(VOCABULARY).roll(3)
    _, _, used = sampling_log_probs(hidden, head(), None, targets, PARAMS)
    scores = hidden @ head().t() / PARAMS.temperature
    from grpo_ext.objective.warpers import kept_tokens

    own = kept_tokens(scores, PARAMS)
    edges = edge_tokens(hidden, head(), None, targets, PARAMS, LogitTransform())
    expected = ~own[torch.arange(VOCABULARY), targets]
    assert torch.equal(edges.bool(), expected) and 0 < edges.sum() < VOCABULARY
    assert (used.mask() & ~own).sum() == edges.sum()


def test_recorded_sets_take_little_memory():
    body = json.dumps(VERSIONS["0.32.0"])
    kept = KeptSet.from_ids([[1, 2, 3]] * 1000, 151_936)
    assert len(body) < 2**14 and sum(part.nbytes for part in (kept.ids, kept.bits)) == 12_000
