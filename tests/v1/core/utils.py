# SPDX-License-Identifier: Apache-2.0
"""A scheduler in one line, and a model to run it against.

The model computes through paged blocks as a worker does, with exact arithmetic in place of
floats: each group is one layer, a layer's output at a position is a hash of everything the
position sees. A wrong block, a stale slot or a token out of place changes every later token, so
"same tokens as a fresh run alone" is the whole check.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.config.cache import CacheConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    first_visible_position,
)
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

VOCAB_SIZE = 50
EOS = 0


def full_spec(block_size: int = 4, **changes: Any) -> FullAttentionSpec:
    """A small full-attention layer."""
    sizes = {"num_kv_heads": 1, "head_size": 8, "head_size_v": 8, "dtype": "float32"} | changes
    return FullAttentionSpec(block_size=block_size, **sizes)


def window_spec(window: int, block_size: int = 4, **changes: Any) -> SlidingWindowSpec:
    """A small windowed layer."""
    sizes = {"num_kv_heads": 1, "head_size": 8, "head_size_v": 8, "dtype": "float32"} | changes
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, **sizes)


def cache_of(num_blocks: int, *specs: KVCacheSpec) -> KVCacheConfig:
    """A cache with one layer a group."""
    groups = [KVCacheGroupSpec((f"layers.{i}",), spec) for i, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=tuple(groups))


class NoGrammar:
    """Structured output for requests that have none."""

    def grammar_init(self, request: Request) -> None:
        raise AssertionError("no request here has a grammar")

    def is_ready(self, request: Request) -> bool:
        raise AssertionError("no request here has a grammar")

    def accept_tokens(self, request: Request, token_ids: list[int]) -> bool:
        raise AssertionError("no request here has a grammar")

    def is_terminated(self, request: Request) -> bool:
        raise AssertionError("no request here has a grammar")

    def clear(self, request_id: str) -> None:
        raise AssertionError("no request here has a grammar")


def create_scheduler(
    *specs: KVCacheSpec,
    num_blocks: int = 100,
    enable_prefix_caching: bool = True,
    watermark: float = 0.0,
    grammar: Any = None,
    **limits: Any,
) -> Scheduler:
    """A scheduler over groups of these specs (one full group by default)."""
    defaults = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 64}
    return Scheduler(
        SchedulerConfig(**(defaults | limits)),
        CacheConfig(enable_prefix_caching=enable_prefix_caching, watermark=watermark),
        cache_of(num_blocks, *(specs or (full_spec(),))),
        grammar or NoGrammar(),
        log_stats=True,
    )


def create_request(
    req_id: str,
    prompt: Sequence[int] | int,
    max_tokens: int = 4,
    *,
    priority: int = 0,
    salt: str | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """A greedy request; `prompt` is token ids, or a length for ids that depend on the name."""
    if isinstance(prompt, int):
        start = sum(map(ord, req_id))
        prompt = [1 + (start * 7 + i * i) % (VOCAB_SIZE - 1) for i in range(prompt)]
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens, **params)
    sampling.eos_token_ids = [EOS]
    return EngineCoreRequest(
        request_id=req_id,
        prompt_token_ids=list(prompt),
        sampling_params=sampling,
        arrival_time=0.0,
        priority=priority,
        cache_salt=salt,
    )


def create_requests(n: int, prompt_len: int = 10, **kwargs: Any) -> list[EngineCoreRequest]:
    """`n` requests r0, r1, ... with prompts of their own."""
    return [create_request(f"r{i}", prompt_len, **kwargs) for i in range(n)]


class StepFailure(RuntimeError):
    """The model failed as a whole."""


@dataclass
class Row:
    """What a worker keeps of a request."""

    token_ids: list[int]
    block_ids: list[list[int]]
    num_prompt_tokens: int
    prompt_logprobs: int | None
    num_computed_tokens: int


class FakeModel:
    """Worker and model in one, see the module's docstring.

    Attributes:
        poison: requests that make every step they are in fail, after it has written rubbish.
        broken: requests whose own row fails.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        managers = scheduler.kv_cache_manager.coordinator.managers
        self.specs = [manager.kv_cache_spec for manager in managers]
        self.pages: dict[int, dict[int, int]] = defaultdict(dict)
        self.rows: dict[str, Row] = {}
        self.poison: set[str] = set()
        self.broken: set[str] = set()
        self.batches: list[list[str]] = []

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """One step."""
        assert step.preempted_req_ids <= step.finished_req_ids
        for req_id in step.finished_req_ids:
            self.rows.pop(req_id, None)
        for new in step.scheduled_new_reqs:
            assert new.req_id not in self.rows, f"{new.req_id} has a row already"
            tokens = new.prompt_token_ids + new.output_token_ids
            self.rows[new.req_id] = Row(
                tokens,
                [list(ids) for ids in new.block_ids],
                len(new.prompt_token_ids),
                new.sampling_params.prompt_logprobs,
                new.num_computed_tokens,
            )
        for cached in step.scheduled_cached_reqs:
            row = self.rows[cached.req_id]
            assert row.num_computed_tokens == cached.num_computed_tokens
            for table, ids in zip(row.block_ids, cached.new_block_ids or (), strict=False):
                table.extend(ids)
        self.batches.append(list(step.num_scheduled_tokens))
        failing = self.poison & step.num_scheduled_tokens.keys()
        result = ModelRunnerOutput()
        for req_id, num_tokens in step.num_scheduled_tokens.items():
            self._run(req_id, num_tokens, result, rubbish=bool(failing))
        if failing:
            raise StepFailure("poisoned")
        return result

    def _run(self, req_id: str, n: int, result: ModelRunnerOutput, *, rubbish: bool) -> None:
        row = self.rows[req_id]
        start, end = row.num_computed_tokens, row.num_computed_tokens + n
        states = list(row.token_ids[start:end])
        assert len(states) == n, f"{req_id} was given tokens it does not have"
        for layer, (spec, table) in enumerate(zip(self.specs, row.block_ids, strict=True)):
            for position, value in zip(range(start, end), states, strict=True):
                page = table[position // spec.block_size]
                assert page != 0, "a token was written to the null block"
                self.pages[page][position % spec.block_size] = -1 if rubbish else value
            states = [] if rubbish else [self._see(layer, p, table) for p in range(start, end)]
            if rubbish:
                return
        row.num_computed_tokens = end
        if row.prompt_logprobs is not None and start + 1 < row.num_prompt_tokens:
            span = range(start + 1, min(end, row.num_prompt_tokens - 1) + 1)
            result.prompt_logprobs[req_id] = LogprobsLists(
                [[row.token_ids[p]] for p in span], [[-float(p)] for p in span], list(span)
            )
        if req_id in self.broken:
            result.errors[req_id] = "not finite"
        elif end == len(row.token_ids):
            token = states[-1] % VOCAB_SIZE
            row.token_ids.append(token)
            result.sampled_token_ids[req_id] = [token]

    def _see(self, layer: int, position: int, table: list[int]) -> int:
        spec = self.specs[layer]
        first = 0
        if isinstance(spec, SlidingWindowSpec):
            first = first_visible_position(position, spec.sliding_window)
        seen = []
        for p in range(first, position + 1):
            page = table[p // spec.block_size]
            assert page != 0, "a visible token is in the null block"
            seen.append(self.pages[page][p % spec.block_size])
        return hash((layer, *seen))


def reference_tokens(
    specs: Sequence[KVCacheSpec], request: EngineCoreRequest, max_model_len: int
) -> list[int]:
    """What the model draws for the request alone, computed without any cache."""
    params = request.sampling_params
    tokens = list(request.prompt_token_ids)
    layers: list[list[int]] = [[] for _ in specs]
    while True:
        for position in range(len(layers[0]), len(tokens)):
            state = tokens[position]
            for layer, spec in enumerate(specs):
                layers[layer].append(state)
                first = 0
                if isinstance(spec, SlidingWindowSpec):
                    first = max(0, position - spec.sliding_window + 1)
                state = hash((layer, *layers[layer][first : position + 1]))
        tokens.append(state % VOCAB_SIZE)
        output = tokens[len(request.prompt_token_ids) :]
        stops = len(output) >= params.min_tokens and output[-1] in params.all_stop_token_ids
        assert params.max_tokens is not None
        if stops or len(output) >= params.max_tokens or len(tokens) >= max_model_len:
            return output


@dataclass
class Collected:
    """Everything that came out for one request."""

    token_ids: list[int] = field(default_factory=list)
    outputs: list[EngineCoreOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, None if it has not."""
        return self.outputs[-1].finish_reason if self.outputs else None


class Engine:
    """Scheduler and model, stepped by hand; checks every invariant after each step."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.model = FakeModel(scheduler)
        self.collected: dict[str, Collected] = defaultdict(Collected)
        self.requests: dict[str, EngineCoreRequest] = {}

    def add(self, *requests: EngineCoreRequest) -> None:
        """Queue requests."""
        for request in requests:
            self.scheduler.add_request(request)
            self.requests[request.request_id] = request

    def step(self) -> SchedulerOutput:
        """One step, whatever becomes of it."""
        step = self.scheduler.schedule()
        limits = self.scheduler.limits
        assert step.total_num_scheduled_tokens <= limits.max_num_batched_tokens
        assert len(step.num_scheduled_tokens) <= limits.max_num_seqs
        assert all(n > 0 for n in step.num_scheduled_tokens.values())
        result = EMPTY_MODEL_RUNNER_OUTPUT
        try:
            if step.num_scheduled_tokens:
                result = self.model.execute(step)
        except StepFailure as error:
            self.collect(self.scheduler.recover_from_failed_step(step, str(error)))
        else:
            self.collect(self.scheduler.update_from_output(step, result).outputs)
        self.scheduler.check_integrity()
        return step

    def collect(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Note what came out; nothing may come after the end."""
        for output in outputs:
            collected = self.collected[output.request_id]
            assert collected.finish_reason is None, f"{output.request_id} spoke after its end"
            collected.outputs.append(output)
            collected.token_ids.extend(output.new_token_ids)

    def run(self, max_steps: int = 2000) -> dict[str, Collected]:
        """Step until all have ended; afterwards no block may be held."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                break
            self.step()
        assert not self.scheduler.has_requests(), f"not done after {max_steps} steps"
        assert self.scheduler.kv_cache_manager.usage == 0.0
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_usable_blocks
        return self.collected

    def reference(self, req_id: str) -> list[int]:
        """The tokens of a fresh run of that request alone."""
        request = self.requests[req_id]
        return reference_tokens(self.model.specs, request, self.scheduler.limits.max_model_len)

    def check_against_solo(self, *req_ids: str) -> None:
        """Those requests (all by default) must have their solo tokens."""
        for req_id in req_ids or self.requests:
            assert self.collected[req_id].token_ids == self.reference(req_id), req_id


def run_all(scheduler: Scheduler, *requests: EngineCoreRequest) -> Engine:
    """Add, run to the end, compare with solo runs."""
    engine = Engine(scheduler)
    engine.add(*requests)
    engine.run()
    engine.check_against_solo()
    return engine
