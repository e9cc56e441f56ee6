"""Real verse: most Tang quatrains keep the rules, and shuffled ones do not."""

import random

import pytest

from grpo_ext.rewards.poem import judge
from tests.support.logs import json_rows


@pytest.fixture
def quatrains(shared_data):
    path = shared_data / "tang_quatrains.jsonl"
    rows = json_rows(path)
    return [row for row in rows if row["form"] == "七绝"]


@pytest.mark.parametrize("writing", ["lines", "traditional"])
def test_tang_quatrains(quatrains, writing, record_property):
    rng = random.Random(0)
    clean = rhymed = fewer = 0
    for row in quatrains:
        verdict = judge(row[writing], tones="pingshui")
        clean += not verdict.faults
        rhymed += verdict.rhyme_score
        other = list("".join(rng.choice(quatrains)[writing]))
        rng.shuffle(other)
        shuffled = judge(
            ["".join(other[start : start + 7]) for start in (0, 7, 14, 21)], tones="pingshui"
        )
        ours = len(verdict.faults)
        theirs = len(shuffled.faults)
        fewer += 1.0 if ours < theirs else 0.5 if ours == theirs else 0.0
    shares = {
        "clean": clean / len(quatrains),
        "rhymed": rhymed / len(quatrains),
        "fewer": fewer / len(quatrains),
    }
    print({name: round(share, 4) for name, share in shares.items()})
    assert shares["clean"] >= 0.69
    assert shares["rhymed"] >= 0.93
    assert shares["fewer"] >= 0.94


def faults_by_line(lines):
    return list(map(len, judge(lines, tones="pingshui").line_faults))


def test_the_writing_hardly_matters(quatrains):
    differing = sum(
        faults_by_line(row["lines"]) != faults_by_line(row["traditional"]) for row in quatrains
    )
    assert differing / len(quatrains) < 0.01
