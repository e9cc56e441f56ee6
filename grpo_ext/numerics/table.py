"""Format a measurement: as tables for the terminal, and as plain data for JSON."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from grpo_ext.common.mismatch_bars import BEYOND_EDGE, KL, MEAN_LOG_RATIO, SHARE_FAR, Bar
from grpo_ext.evaluation.table import print_grid
from grpo_ext.numerics.distances import Distance
from grpo_ext.numerics.edges import Edges
from grpo_ext.numerics.measure import SAMPLER, Measurement

HEAD = ("tokens", "KL a token", "mean |log r|", "largest", "outside 0.9 to 1.1")
BARS: dict[str, Bar] = {
    "KL a token": KL,
    "mean |log r|": MEAN_LOG_RATIO,
    "outside 0.9 to 1.1": SHARE_FAR,
    "drawn beyond the trainer's edge": BEYOND_EDGE,
}


def print_measurement(found: Measurement) -> None:
    """Print a measurement: the run's setup, the distances, the kept sets and the limits."""
    print(
        f"weights {found.weights}, mixed precision {found.autocast}, on {found.device}; "
        f"{found.completions} completions, {found.tokens} tokens"
    )
    print(f"sampler: {found.sampler}")
    rows = []
    for comparison in found.comparisons:
        cells = distance_cells(comparison.distance)
        rows.append([comparison.name, *cells, verdict(comparison.distance)])
    print_grid("log-probs of the same tokens", ["", *HEAD, ""], rows, left=1, whole=6)
    for comparison in found.comparisons:
        if comparison.reason:
            print(f"not measured: {comparison.name}, because {comparison.reason}")
        if comparison.name == SAMPLER:
            print_parts("by position in the completion", comparison.by_position)
            print_parts("by probability of the sampler", comparison.by_probability)
    if found.edges is not None:
        for line in edge_lines(found.edges):
            print(line)
    for name, bar in BARS.items():
        print(f"limit of {name}: {bar.limit:g} ({bar.source})")


def print_parts(title: str, parts: Mapping[str, Distance | None]) -> None:
    """Print a table of the distances between sampler and trainer, by part of the tokens.

    Args:
        title: what the parts are, such as "by position in the completion".
        parts: the distance for each part, by the part's name; `None` if no token was compared.
    """
    rows = [[name, *distance_cells(apart)] for name, apart in parts.items()]
    print_grid(f"{SAMPLER}, {title}", ["", *HEAD], rows, left=1, whole=6)


def distance_cells(apart: Distance | None) -> list[str]:
    """Return the table cells for the columns in `HEAD`; dashes if no token was compared."""
    if apart is None:
        return ["-"] * len(HEAD)
    error = "" if apart.kl_error is None else f" ± {apart.kl_error:.1g}"
    return [
        str(apart.tokens),
        f"{apart.kl:.2g}{error}",
        f"{apart.mean:.2g}",
        f"{apart.largest:.2g}",
        f"{apart.share_far:.2%}",
    ]


def verdict(apart: Distance | None) -> str:
    """Return "within", "not measured", or "above: " and the names of the exceeded figures."""
    if apart is None:
        return "not measured"
    if apart.exceeded:
        return "above: " + ", ".join(apart.exceeded)
    return "within"


def edge_lines(edges: Edges) -> Iterator[str]:
    """Yield lines that describe how the kept sets of the sampler and the trainer differ."""
    if edges.differ is None:
        yield "the sampler does not return the tokens that its truncation kept"
    else:
        yield (
            "positions where sampler and trainer keep different tokens: "
            f"{edges.differ:.2%} of {edges.positions}; the sampler alone keeps "
            f"{edges.only_sampler:.3g} tokens per position, the trainer alone "
            f"{edges.only_trainer:.3g}"
        )
    word = "above" if edges.exceeded else "within"
    yield f"drawn tokens that the trainer would not have kept: {edges.beyond:.3%} ({word})"


def as_data(found: Measurement) -> dict[str, Any]:
    """Return a measurement as plain data for JSON; numbers that are not finite become `None`.

    The keys are the fields of `Measurement`, "limits" and "within"; each entry of "comparisons"
    also has the key "exceeded".
    """
    data = asdict(found)
    for comparison, row in zip(found.comparisons, data["comparisons"], strict=True):
        row["exceeded"] = comparison.exceeded
    data["limits"] = {name: asdict(bar) for name, bar in BARS.items()}
    data["within"] = found.within
    plain = finite(data)
    assert isinstance(plain, dict)
    return plain


def finite(value: Any) -> Any:
    """Return a copy of plain data with `None` for numbers that are not finite, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
