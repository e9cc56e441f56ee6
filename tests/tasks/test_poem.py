"""The poem task: the shipped quatrains keep the rules, rows of every shape work, and prompts say
what is wanted.
"""

import json

import pytest

from grpo_ext.rewards import build
from grpo_ext.rewards.poem import judge
from grpo_ext.tasks.poem import PROMPTS, QUATRAINS, Poem

POEM = ["白日依山尽", "黄河入海流", "欲穷千里目", "更上一层楼"]
EIGHT = "国破山河在，城春草木深。感时花溅泪，恨别鸟惊心。烽火连三月，家书抵万金。白头搔更短，浑欲不胜簪。"


def test_the_shipped_quatrains_keep_the_rules():
    """Each rhymes by 平水韵 and has at most one tonal fault by the rhyme book's tones.

    Six in seven have none.
    """
    verdicts = {row["title"]: judge(row["lines"], tones="pingshui") for row in QUATRAINS}
    assert len(QUATRAINS) >= 200
    assert not {
        title: verdict.faults for title, verdict in verdicts.items() if len(verdict.faults) > 1
    }
    assert all(judge(row["lines"], tones="pingshui").rhyme_score == 1 for row in QUATRAINS)
    clean = sum(not judge(row["lines"], tones="pingshui").faults for row in QUATRAINS)
    assert clean >= 6 / 7 * len(QUATRAINS)


def test_the_shipped_quatrains_are_whole_and_different():
    rows = QUATRAINS
    assert (
        len({"".join(row["lines"]) for row in rows})
        == len({row["lines"][3] for row in rows})
        == len(rows)
    )
    for row in rows:
        assert row["title"] and row["author"] and set(row) == {"title", "author", "form", "lines"}
        length = {"五绝": 5, "七绝": 7}[row["form"]]
        assert list(map(len, row["lines"])) == [length] * 4
        assert all("\u4e00" <= character <= "\u9fff" for line in row["lines"] for character in line)


def test_the_shipped_quatrains_are_those_of_the_collection(shared_data):
    """Where the collection of real verse has a poem of the same title and author, the texts agree
    but for variants.
    """
    rows = map(
        json.loads, (shared_data / "tang_quatrains.jsonl").read_text(encoding="utf-8").splitlines()
    )
    known = {(row["title"], row["author"]): row["lines"] for row in rows}
    both = [
        (row["lines"], known[key])
        for row in QUATRAINS
        if (key := (row["title"], row["author"])) in known
    ]
    assert len(both) > 30
    differing = [
        sum(a != b for a, b in zip("".join(ours), "".join(theirs), strict=True))
        for ours, theirs in both
    ]
    assert sorted(differing)[-2] <= 4  # one, 叹花, has come down in two versions


def test_splits_are_disjoint_and_complete():
    task = Poem()
    train = list(task.generate("train"))
    test = list(task.generate("test"))
    assert len(train) + len(test) == len(QUATRAINS)
    assert 0.12 < len(test) / len(QUATRAINS) < 0.28
    assert not {row["lines"][0] for row in train} & {row["lines"][0] for row in test}
    with pytest.raises(ValueError, match="not 'validation'"):
        Poem().generate("validation")


def test_the_split_does_not_depend_on_how_a_row_is_written():
    task = Poem()
    for row in QUATRAINS:
        given = {"lines": [f"{line}，" for line in row["lines"][:3]]}
        assert (
            task.is_held_out(row)
            == task.is_held_out(given)
            == task.is_held_out({"lines": "，".join(row["lines"])})
        )


@pytest.mark.parametrize(
    "row",
    [
        {"lines": POEM},
        {"lines": POEM[:3], "last_line": POEM[3]},
        {"lines": "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"},
        {"lines": [f"{line}。" for line in POEM], "last_line": "ignored"},
    ],
)
def test_rows_of_every_shape(row):
    task = Poem()
    assert task.columns(row) == {"lines": POEM[:3], "last_line": POEM[3]}
    assert task.keep(row)
    example = task.example(row)
    assert task.example(example) == example  # nothing is cut off twice


def test_eight_lines_and_unknown_last_lines():
    task = Poem()
    assert list(map(len, task.columns({"lines": EIGHT}).values())) == [7, 5]
    assert "五言律诗" in task.prompt({"lines": EIGHT})[1]["content"]
    assert task.columns({"lines": POEM[:3]})["last_line"] == ""


@pytest.mark.parametrize(
    "lines",
    [[], POEM[:2], [*POEM, *POEM[:1]], ["白日依山", *POEM[1:]], ["a", "b", "c", "d"], "no verse"],
)
def test_what_is_no_regulated_verse_is_not_kept(lines):
    assert not Poem().keep({"lines": lines})


def test_a_row_without_lines_is_an_error_that_says_so():
    with pytest.raises(
        ValueError, match=r"reads the column 'lines', which the data lacks\. .* columns text\."
    ):
        Poem().example({"text": "白日依山尽"})


def test_prompts():
    system, user = Poem().prompt({"lines": POEM})
    assert (system["role"], system["content"], user["role"]) == (
        "system",
        PROMPTS["think_first"],
        "user",
    )
    assert "五言绝句" in user["content"] and "共五个字" in user["content"]
    assert "白日依山尽，\n黄河入海流。\n欲穷千里目，\n" in user["content"]
    assert POEM[3] not in user["content"]
    assert (
        Poem(chain_of_thought=False).prompt({"lines": POEM})[0]["content"] == PROMPTS["line_alone"]
    )
    assert "<think>" in PROMPTS["think_first"] and "<" not in PROMPTS["line_alone"]


def test_prompts_can_be_replaced():
    task = Poem(system_prompt="", user_prompt="{author}《{title}》{form}：{lines}")
    (message,) = task.prompt({"lines": POEM, "title": "登鹳雀楼", "author": "王之涣"})
    assert message["content"].startswith("王之涣《登鹳雀楼》五言绝句：白日依山尽")
    with pytest.raises(ValueError, match="unknown fields"):
        Poem(user_prompt="{lines} {rhyme}")
    with pytest.raises(ValueError, match="lacks"):
        Poem(user_prompt="续写")
    with pytest.raises(ValueError, match="test_fraction"):
        Poem(test_fraction=1.5)


def test_prompts_can_state_facts_of_the_given_lines_and_nothing_of_the_hidden_one():
    task = Poem(system_prompt="", user_prompt="{lines}|{pattern}|{rhyme_group}")
    said = {
        task.prompt({"lines": [*POEM[:3], last]})[0]["content"]
        for last in (POEM[3], "天地玄黄洪", "")
    }
    assert said == {
        "白日依山尽，\n黄河入海流。\n欲穷千里目，|仄仄平平仄\n平平仄仄平\n平平平仄仄|十一尤"
    }


def test_the_rewards_read_the_columns():
    task = Poem()
    example = task.example({"lines": POEM})
    for name in task.default_rewards:
        reward = build(name, tones="pingshui")
        assert set(reward.columns) <= example.keys()
        assert reward(
            completions=[f"<answer>{example['last_line']}</answer>"], lines=[example["lines"]]
        ) == [1.0]


def test_a_data_set_of_it(tmp_path):
    path = tmp_path / "poems.jsonl"
    rows = [{"title": "登鹳雀楼", "lines": POEM}, {"title": "断句", "lines": POEM[:2]}]
    path.write_text(
        "\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
    )
    examples = Poem().dataset(dataset_name=str(path))
    assert [row["title"] for row in examples] == ["登鹳雀楼"]
    assert examples[0]["lines"] == POEM[:3] and examples[0]["last_line"] == POEM[3]
    shipped = Poem().dataset("test", limit=5)
    assert len(shipped) == 5 and all(len(row["lines"]) == 3 for row in shipped)
