# SPDX-License-Identifier: Apache-2.0
"""Where statistics go: Prometheus metrics under upstream's names, and a line in the log.

Each logger is handed the numbers of every batch of outputs; it knows nothing of where they
come from.
"""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from vllm.config import CacheConfig
from vllm.logger import init_logger
from vllm.v1.engine.messages import SchedulerStats
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

logger = init_logger(__name__)

_LATENCY_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_LATENCY_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FINISH_REASONS = ("stop", "length", "abort", "error")
_LABELS = ("model_name", "engine")


def length_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `max_model_len`, for histograms of token counts."""
    buckets: list[float] = []
    unit = 1
    while unit <= max_model_len:
        buckets += [unit * step for step in (1, 2, 5) if unit * step <= max_model_len]
        unit *= 10
    return tuple(buckets)


class PrometheusStatLogger:
    """Keeps the engine's metrics in a registry of its own.

    Args:
        model_name: value of the label `model_name`.
        max_model_len: upper end of the histograms of token counts.
        cache_config: reported as the labels of `vllm:cache_config_info`.
        engine: value of the label `engine`.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        *,
        cache_config: CacheConfig | None = None,
        registry: CollectorRegistry | None = None,
        engine: str = "0",
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._labels = (model_name, engine)
        ProcessCollector(registry=self.registry)
        self._make_state_metrics()
        self._make_counters()
        self._make_histograms(length_buckets(max_model_len))
        if cache_config is not None:
            self._report_cache_config(cache_config)

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Add one batch's numbers."""
        if scheduler_stats is not None:
            self._record_scheduler(scheduler_stats)
        if iteration_stats is not None:
            self._record_iteration(iteration_stats)

    def record_refusal(self) -> None:
        """Count a request that was refused because the queue is full."""
        self._refused.inc()

    def _make_state_metrics(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests that run.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait to run.")
        self._cache_usage = self._gauge(
            "kv_cache_usage_perc", "Share of KV cache blocks in use; 1 is all of them."
        )

    def _make_counters(self) -> None:
        self._preemptions = self._counter(
            "num_preemptions", "Times a request lost its blocks and was computed anew."
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._cache_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self._cache_hits = self._counter(
            "prefix_cache_hits", "Prompt tokens found in the prefix cache."
        )
        self._refused = self._counter(
            "num_requests_refused", "Requests refused because the waiting queue was full."
        )
        success = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {r: success.labels(*self._labels, r) for r in _FINISH_REASONS}

    def _make_histograms(self, lengths: tuple[float, ...]) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _LATENCY_S
        )
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Between one token and the next.", _TOKEN_LATENCY_S
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST_S
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first step.", _REQUEST_S
        )
        self._prefill_time = self._histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", _REQUEST_S
        )
        self._decode_time = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _REQUEST_S
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens per request.", lengths
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Tokens generated per request.", lengths
        )

    def _record_scheduler(self, stats: SchedulerStats) -> None:
        self._running.set(stats.num_running_reqs)
        self._waiting.set(stats.num_waiting_reqs)
        self._cache_usage.set(stats.kv_cache_usage)
        self._preemptions.inc(stats.num_preemptions)
        self._cache_queries.inc(stats.prefix_cache_stats.queries)
        self._cache_hits.inc(stats.prefix_cache_stats.hits)

    def _record_iteration(self, stats: IterationStats) -> None:
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._generation_tokens.inc(stats.num_generation_tokens)
        for seconds in stats.time_to_first_tokens:
            self._ttft.observe(seconds)
        for seconds in stats.inter_token_latencies:
            self._itl.observe(seconds)
        for finished in stats.finished_requests:
            self._record_finished(finished)

    def _record_finished(self, finished: FinishedRequestStats) -> None:
        self._finished[finished.finish_reason].inc()
        self._e2e.observe(finished.e2e_latency)
        self._queue_time.observe(finished.queued_time)
        self._prefill_time.observe(finished.prefill_time)
        self._decode_time.observe(finished.decode_time)
        self._request_prompt.observe(finished.num_prompt_tokens)
        self._request_generation.observe(finished.num_generation_tokens)

    def _report_cache_config(self, cache_config: CacheConfig) -> None:
        values = {
            name: str(getattr(cache_config, name)) for name in cache_config.__dataclass_fields__
        }
        info = Gauge(
            "vllm:cache_config_info",
            "The KV cache's settings, as labels; the value is 1.",
            ("engine", *values),
            registry=self.registry,
        )
        info.labels(self._labels[1], *values.values()).set(1)

    def _gauge(self, name: str, doc: str) -> Gauge:
        gauge = Gauge(f"vllm:{name}", doc, _LABELS, registry=self.registry)
        return gauge.labels(*self._labels)

    def _counter(self, name: str, doc: str) -> Counter:
        counter = Counter(f"vllm:{name}", doc, _LABELS, registry=self.registry)
        return counter.labels(*self._labels)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", doc, _LABELS, registry=self.registry, buckets=buckets)
        return histogram.labels(*self._labels)


class LoggingStatLogger:
    """Logs a line of throughput every `interval_s` seconds while there is work."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._since = time.monotonic()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._queries = 0
        self._hits = 0

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Add one batch's numbers, and log when it is time."""
        if iteration_stats is not None:
            self._prompt_tokens += iteration_stats.num_prompt_tokens
            self._generation_tokens += iteration_stats.num_generation_tokens
        if scheduler_stats is None:
            return
        self._queries += scheduler_stats.prefix_cache_stats.queries
        self._hits += scheduler_stats.prefix_cache_stats.hits
        elapsed_s = time.monotonic() - self._since
        if elapsed_s >= self._interval_s:
            self._log(scheduler_stats, elapsed_s)

    def _log(self, stats: SchedulerStats, elapsed_s: float) -> None:
        # After an idle stretch the first interval would dilute the rate; it is only restarted.
        if elapsed_s < 2 * self._interval_s:
            logger.info(
                "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, "
                "KV cache %.1f %%, prefix hits %.1f %%",
                self._prompt_tokens / elapsed_s,
                self._generation_tokens / elapsed_s,
                stats.num_running_reqs,
                stats.num_waiting_reqs,
                100 * stats.kv_cache_usage,
                100 * self._hits / self._queries if self._queries else 0.0,
            )
        self._since = time.monotonic()
        self._prompt_tokens = self._generation_tokens = 0
        self._queries = self._hits = 0
