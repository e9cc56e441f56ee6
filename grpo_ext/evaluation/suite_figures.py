"""Summarize and compare the results of the lm-evaluation-harness by task, and save them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_ext.common.estimates import mean_difference
from grpo_ext.common.files import write_atomically
from grpo_ext.common.untrusted import one_line
from grpo_ext.evaluation.compare import difference_fields
from grpo_ext.evaluation.completions import Row
from grpo_ext.evaluation.output_files import completions_path

NO_FILTER = "none"  # the harness's name for completions that are scored as they are
COUNT = "n"
# By task and document number: the value of a metric, and the document's hash.
Values = dict[tuple[str, int], tuple[float, str]]


def evaluation_of(results: dict[str, dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of the evaluated models, and the comparison of each with the first.

    Args:
        results: the results of the harness, by model; the first model is the baseline.
        settings: the settings that the metrics depend on, from `settings_of`.

    Returns:
        A dict with the keys

        - `settings`: the given settings, with the additional key `shown`: the names of the tasks
          and groups that are not part of another group with metrics.
        - `results`: the given results, unchanged.
        - `figures`: the metrics from `figures_by_task`, by model.
        - `comparisons`: for each later model, the differences from `compare_results`, with the
          names of both models under `model` and `against`.
    """
    first, *later = results
    comparisons = []
    for name in later:
        differences = compare_results(results[first], results[name])
        comparisons.append({"model": name, "against": first, **differences})
    figures = {name: figures_by_task(of_model) for name, of_model in results.items()}
    shown = without_parts(figures[first], results[first]["group_subtasks"])
    return {
        "settings": settings | {"shown": list(shown)},
        "results": results,
        "figures": figures,
        "comparisons": comparisons,
    }


def figures_by_task(results: dict[str, Any]) -> dict[str, Row]:
    """Return the metrics of each task, and of each group of tasks, that has a score.

    Args:
        results: the results of the harness for one model.

    Returns:
        For each task or group, the number of its documents, `n` (`None` if the harness does not
        report it), and its metrics with their standard errors, such as `{"gsm8k": {"n": 1319,
        "exact_match (strict-match)": 0.62, "exact_match (strict-match)_se": 0.013}}`. A metric
        without a filter has its plain name, such as `acc`. The standard errors are those of the
        harness, which computes none for some metrics.
    """
    figures = {}
    for name, metrics in results["results"].items():
        row: Row = {COUNT: metrics.get("sample_len")}
        for key, value in metrics.items():
            metric, comma, metric_filter = key.partition(",")
            if not comma or not is_score(value):
                continue
            if metric.endswith("_stderr"):
                row[f"{label(metric.removesuffix('_stderr'), metric_filter)}_se"] = float(value)
            else:
                row[label(metric, metric_filter)] = float(value)
        if len(row) > 1:
            figures[one_line(name)] = row
    return figures


def label(metric: str, metric_filter: str) -> str:
    """Return a metric's displayed name, followed by the harness's filter in parentheses, if any."""
    name = metric if metric_filter == NO_FILTER else f"{metric} ({metric_filter})"
    return one_line(name)


def is_score(value: object) -> bool:
    """Return whether a value from the harness is a score, rather than a string, list or tuple.

    NumPy numbers are scores, and so are `True` and `False`, which IFEval uses.
    """
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str)


def without_parts(figures: dict[str, Row], subtasks: dict[str, list[str]]) -> dict[str, Row]:
    """Return the metrics of tasks and groups that are not part of another group with metrics.

    Args:
        figures: the metrics from `figures_by_task`.
        subtasks: the names of the tasks and groups in each group.
    """
    parts: set[str] = set()
    for group in figures:
        if group in subtasks:
            parts.update(descendants(group, subtasks))
    return {name: row for name, row in figures.items() if name not in parts}


def descendants(name: str, subtasks: dict[str, list[str]]) -> Iterator[str]:
    """Yield the names of all tasks and groups in a group, at any depth."""
    for child in subtasks.get(name, []):
        yield child
        yield from descendants(child, subtasks)


def values_of(results: dict[str, Any], name: str) -> dict[str, Values]:
    """Return the values of each metric, by document, for one task or for all tasks of a group.

    Documents are identified by (task, document number), and each value is paired with the hash of
    its document.

    Args:
        results: the results of the harness for one model, with `samples`.
        name: the name of the task or group.
    """
    values: dict[str, Values] = {}
    for task in [name, *descendants(name, results["group_subtasks"])]:
        for sample in results["samples"].get(task, []):
            for metric in sample["metrics"]:
                if is_score(sample[metric]):
                    by_document = values.setdefault(label(metric, sample["filter"]), {})
                    document = (task, sample["doc_id"])
                    by_document[document] = (float(sample[metric]), sample["doc_hash"])
    return values


def compare_results(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the paired differences between two results on the same tasks, by task and metric.

    Tasks and groups that are part of another group with metrics are left out, and so are documents
    that only one of the results contains. Only metrics that are the mean over documents are
    compared, because only their difference is the mean of paired differences.

    Args:
        before: the results of the first model.
        after: the results of the second model.
    """
    figures_before = figures_by_task(before)
    figures_after = figures_by_task(after)
    differences: dict[str, dict[str, Any]] = {}
    for name in without_parts(figures_before, before["group_subtasks"]):
        values_before = values_of(before, name)
        values_after = values_of(after, name)
        differences[name] = {}
        for metric in figures_before[name]:
            old = values_before.get(metric, {})
            new = values_after.get(metric, {})
            documents = [document for document in old if document in new]
            first = [old[document][0] for document in documents]
            second = [new[document][0] for document in documents]
            if not is_mean(figures_before[name][metric], first):
                continue
            if not is_mean(figures_after[name].get(metric), second):
                continue
            problems = [(document[0], old[document][1]) for document in documents]
            difference = mean_difference(first, second, problems)
            if difference is not None:
                differences[name][metric] = difference_fields(difference, len(documents))
    return differences


def is_mean(figure: float | None, values: list[float]) -> bool:
    """Return whether `figure` is the mean of `values`, up to rounding.

    Return `False` if `figure` is `None` or there are no values.
    """
    if figure is None or not values:
        return False
    return math.isclose(figure, sum(values) / len(values), rel_tol=1e-9, abs_tol=1e-12)


def save_suite(path: Path, evaluation: dict[str, Any]) -> list[Path]:
    """Write a result of `evaluate_suite` to two files, and return their paths.

    `path` receives `settings`, `models` (the metrics of each model) and `comparisons` as JSON.
    `<stem>_completions.jsonl` in the same folder receives one line for each model, document and
    filter, with the model's responses and their scores.
    """
    completions = completions_path(path)
    lines = []
    for model, results in evaluation["results"].items():
        for task, samples in results["samples"].items():
            for sample in samples:
                line = {"model": model, "task": task, **without_document(sample)}
                lines.append(json.dumps(line, ensure_ascii=False, default=str))
    write_atomically(completions, "\n".join(lines) + "\n")
    figures = {
        "settings": evaluation["settings"],
        "models": evaluation["figures"],
        "comparisons": evaluation["comparisons"],
    }
    write_atomically(path, json.dumps(figures, indent=2) + "\n")
    return [path, completions]


def without_document(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a harness sample's ids, prompt, target, responses and scores, without its document."""
    fields = {
        "doc_id": sample["doc_id"],
        "filter": sample["filter"],
        "prompt": sample["arguments"][0][0],
        "target": sample["target"],
        "responses": sample["resps"],
        "filtered": sample["filtered_resps"],
    }
    for metric in sample["metrics"]:
        fields[metric] = sample[metric]
    return fields
