# SPDX-License-Identifier: Apache-2.0
"""Metrics: upstream's names, right sums, nothing odd on an idle engine."""

import logging
import math

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vllm.config import CacheConfig
from vllm.v1.engine.messages import PrefixCacheStats, SchedulerStats
from vllm.v1.metrics import reader
from vllm.v1.metrics.loggers import LoggingStatLogger, PrometheusStatLogger, length_buckets
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

LABELS = {"model_name": "m", "engine": "0"}
NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_requests_refused",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "cache_config_info",
]


@pytest.fixture
def stats():
    return PrometheusStatLogger("m", 100, cache_config=CacheConfig())


def value(stats, name, **labels):
    return stats.registry.get_sample_value(f"vllm:{name}", LABELS | labels)


def test_every_name_is_there_before_the_first_request_and_finite(stats):
    families = list(text_string_to_metric_families(generate_latest(stats.registry).decode()))
    assert {f"vllm:{name}" for name in NAMES} <= {family.name for family in families}
    assert all(math.isfinite(s.value) for family in families for s in family.samples)


def test_scheduler_gauges_follow_and_counters_add_up(stats):
    cache = PrefixCacheStats(queries=10, hits=4)
    batch = SchedulerStats(
        num_running_reqs=3,
        num_waiting_reqs=2,
        kv_cache_usage=0.5,
        num_preemptions=1,
        prefix_cache_stats=cache,
    )
    stats.record(batch, None)
    stats.record(batch, None)
    stats.record(SchedulerStats(), None)
    assert value(stats, "num_requests_running") == 0
    assert value(stats, "num_preemptions_total") == 2
    assert value(stats, "prefix_cache_queries_total") == 20
    assert value(stats, "prefix_cache_hits_total") == 8


def test_iterations_and_finished_requests_are_counted(stats):
    finished = FinishedRequestStats("length", e2e_latency=2.0, num_prompt_tokens=7)
    finished.num_generation_tokens = 5
    batch = IterationStats(
        num_prompt_tokens=7,
        num_generation_tokens=5,
        time_to_first_tokens=[0.5],
        inter_token_latencies=[0.1, 0.1],
        finished_requests=[finished],
    )
    stats.record(None, batch)
    assert value(stats, "prompt_tokens_total") == 7
    assert value(stats, "generation_tokens_total") == 5
    assert value(stats, "request_success_total", finished_reason="length") == 1
    assert value(stats, "request_success_total", finished_reason="abort") == 0
    assert value(stats, "time_to_first_token_seconds_sum") == 0.5
    assert value(stats, "inter_token_latency_seconds_count") == 2
    assert value(stats, "request_prompt_tokens_bucket", le="10.0") == 1
    assert value(stats, "request_generation_tokens_sum") == 5


def test_two_engines_do_not_share_a_registry():
    first, second = PrometheusStatLogger("m", 10), PrometheusStatLogger("m", 10)
    first.record_refusal()
    assert value(first, "num_requests_refused_total") == 1
    assert value(second, "num_requests_refused_total") == 0


def test_length_buckets_end_at_the_longest_length():
    assert length_buckets(60) == (1, 2, 5, 10, 20, 50)
    assert length_buckets(1) == (1,)


def test_reader_gives_one_record_per_label_set(stats):
    stats.record(SchedulerStats(num_running_reqs=3), IterationStats(time_to_first_tokens=[0.5]))
    metrics = {
        (m.name, m.labels.get("finished_reason")): m for m in reader.get_metrics(stats.registry)
    }
    assert metrics["vllm:num_requests_running", None].value == 3.0
    assert isinstance(metrics["vllm:request_success", "stop"], reader.Counter)
    histogram = metrics["vllm:time_to_first_token_seconds", None]
    assert (histogram.count, histogram.sum, histogram.buckets["+Inf"]) == (1, 0.5, 1)
    assert all(name.startswith("vllm:") for name, _ in metrics)


class Lines(logging.Handler):
    """Keeps messages."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def test_throughput_is_logged_at_intervals_and_survives_no_queries(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("vllm.v1.metrics.loggers.time.monotonic", lambda: now[0])
    log, seen = LoggingStatLogger(interval_s=10.0), Lines()
    logging.getLogger("vllm.v1.metrics.loggers").addHandler(seen)
    try:
        now[0] += 5
        log.record(SchedulerStats(), IterationStats(num_generation_tokens=50))
        assert not seen.lines
        now[0] += 5
        log.record(SchedulerStats(num_running_reqs=1), IterationStats(num_generation_tokens=50))
    finally:
        logging.getLogger("vllm.v1.metrics.loggers").removeHandler(seen)
    assert len(seen.lines) == 1
    assert "generation 10.0 tokens/s, running 1" in seen.lines[0]
