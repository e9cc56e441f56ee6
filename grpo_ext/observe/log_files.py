"""The names of a run's log files, and the fields of their lines."""

from grpo_ext.observe.jsonl import FieldType

METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
RUN = "run.json"
LEARNED_NOTHING = "learned_nothing"  # the alarm of a run that finished but learned nothing
# The fields, with their types, that a line of samples.jsonl must have in addition to `step`.
SAMPLE: dict[str, FieldType] = {
    "mode": str,
    "dataset": str,
    "prompt_id": str,
    "prompt": object,
    "group": int,
    "text": str,
    "rewards": dict,
    "reward": int | float | None,
    "advantage": int | float | None,
    "finish_reason": str,
    "length": int | float,
}
# Optional fields that the report shows for a completion: its task, and figures about its episode.
INDEXED = ("task", "turns", "end", "environment_time")
