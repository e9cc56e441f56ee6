"""Chinese regulated verse: which pattern a poem follows, where its tones miss it, and whether it rhymes.

    judge(["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去", "一棹烟波去未迷"])

The way of a poem: `text` finds its lines, `characters` knows tones and rhymes, `forms` the patterns, and
`judge` compares.
"""

from grpo_ext.rewards.poem.judge import Fault, Flaw, Verdict, judge
from grpo_ext.rewards.poem.text import last_line

__all__ = ["Fault", "Flaw", "Verdict", "judge", "last_line"]
