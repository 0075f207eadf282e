# SPDX-License-Identifier: Apache-2.0
"""Reads a metrics registry into plain records, for `LLM.get_metrics`."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

PREFIX = "vllm:"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one label set.

    Attributes:
        name: with the prefix `vllm:`; a counter's without its suffix `_total`.
        labels: label values by name.
    """

    name: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A value that only grows."""

    value: int = 0


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A value that goes up and down."""

    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Observations: their count, their sum, and cumulative counts by upper bound."""

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = field(default_factory=dict)


def get_metrics(registry: CollectorRegistry) -> list[Metric]:
    """Every `vllm:` metric of `registry`, one record per label set."""
    return [
        metric
        for family in registry.collect()
        if family.name.startswith(PREFIX)
        for metric in _records(family)
    ]


def _records(family: Family) -> list[Metric]:
    match family.type:
        case "counter":
            return [
                Counter(family.name, dict(s.labels), int(s.value))
                for s in family.samples
                if s.name.endswith("_total")
            ]
        case "gauge":
            return [Gauge(family.name, dict(s.labels), s.value) for s in family.samples]
        case "histogram":
            return _histograms(family)
    return []


def _histograms(family: Family) -> list[Metric]:
    counts: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    totals: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        key = tuple(sorted(labels.items()))
        if bound is not None:
            counts.setdefault(key, {})[bound] = int(sample.value)
        else:
            totals.setdefault(key, {})[sample.name.removeprefix(family.name)] = sample.value
    return [
        Histogram(
            family.name,
            dict(key),
            int(totals[key]["_count"]),
            totals[key]["_sum"],
            buckets,
        )
        for key, buckets in counts.items()
    ]
