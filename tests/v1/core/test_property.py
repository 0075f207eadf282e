# SPDX-License-Identifier: Apache-2.0
"""Random operations in random order on tiny pools: whatever happens, every request that ends by
itself has the tokens of a fresh run alone, the invariants hold after every step, and at the end
no block is held."""

import random
from typing import Any

import pytest

from tests.v1.core.utils import Engine, create_request, create_scheduler, full_spec, window_spec
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.messages import FinishReason
from vllm.v1.request import RequestStatus

CACHES: dict[str, tuple[Any, ...]] = {
    "full": (full_spec(),),
    "window": (window_spec(6),),
    "window of one": (full_spec(), window_spec(1)),
    "mixed": (window_spec(6), full_spec()),
    "three groups": (window_spec(5), full_spec(), window_spec(9)),
    "unequal blocks": (full_spec(4), window_spec(7, 8)),
    "unequal blocks, not nested": (full_spec(6), window_spec(7, 4)),
}
SHARED = [[7] * 30, [3, 1, 4, 1, 5, 9, 2, 6] * 4, list(range(1, 33))]


class RandomLife:
    """One random history."""

    def __init__(self, seed: int, cache: str) -> None:
        self.rng = rng = random.Random(seed)
        specs = CACHES[cache]
        chunked = rng.random() < 0.8
        self.engine = Engine(
            create_scheduler(
                *specs,
                num_blocks=rng.choice([1 + 12 * len(specs), 1 + 16 * len(specs), 60 * len(specs)]),
                enable_prefix_caching=rng.random() < 0.9,
                watermark=rng.choice([0.0, 0.0, 0.1]),
                max_model_len=40,
                max_num_seqs=rng.choice([1, 3, 6]),
                max_num_batched_tokens=rng.choice([1, 5, 16, 40]) if chunked else 40,
                enable_chunked_prefill=chunked,
                long_prefill_token_threshold=rng.choice([0, 0, 3]),
                policy=rng.choice(["fcfs", "priority"]),
            )
        )
        self.num_added = 0
        self.culprits: set[str] = set()
        self.aborted: set[str] = set()

    def add(self) -> None:
        """A request that often shares a prefix, or the whole prompt, with others."""
        rng = self.rng
        prompt = rng.choice(SHARED)[: rng.randint(1, 30)]
        prompt += [rng.randint(1, 3) for _ in range(rng.choice([0, 0, 1, 5]))]
        req_id = f"r{self.num_added}"
        request = create_request(
            req_id,
            prompt,
            rng.randint(1, 12),
            priority=rng.randint(-1, 1),
            salt=rng.choice([None, None, None, "a", ""]),
            prompt_logprobs=rng.choice([None, None, None, 0]),
            skip_reading_prefix_cache=rng.choice([None, None, True]),
            ignore_eos=rng.random() < 0.3,
            stop_token_ids=rng.sample(range(50), 3),
        )
        self.num_added += 1
        try:
            self.engine.add(request)
        except VLLMValidationError:
            return
        kind = rng.random()
        if kind < 0.03:
            self.engine.model.poison.add(req_id)
        elif kind < 0.06:
            self.engine.model.broken.add(req_id)
        if kind < 0.06:
            self.culprits.add(req_id)

    def abort(self, in_flight: bool = False) -> None:
        """Abort some request, which may have ended already."""
        if self.engine.requests:
            req_id = self.rng.choice(list(self.engine.requests)[-8:])
            scheduler = self.engine.scheduler
            outputs = scheduler.finish_requests(req_id, RequestStatus.FINISHED_ABORTED)
            self.engine.collect(outputs)
            self.aborted |= {output.request_id for output in outputs}
            if not in_flight:
                scheduler.check_integrity()

    def step_with_abort(self) -> None:
        """A step during which a request is aborted."""
        engine = self.engine
        step = engine.scheduler.schedule()
        if engine.model.poison & step.num_scheduled_tokens.keys():
            engine.collect(engine.scheduler.recover_from_failed_step(step, "failed early"))
            return
        result = engine.model.execute(step)
        self.abort(in_flight=True)
        engine.collect(engine.scheduler.update_from_output(step, result).outputs)
        engine.scheduler.check_integrity()

    def fail_step(self) -> None:
        """A step that fails though nobody is to blame; alone, the one in it bears it."""
        engine = self.engine
        step = engine.scheduler.schedule()
        if len(step.num_scheduled_tokens) == 1:
            self.culprits |= step.num_scheduled_tokens.keys()
        engine.collect(engine.scheduler.recover_from_failed_step(step, "bad luck"))
        engine.scheduler.check_integrity()

    def reset(self) -> None:
        """Reset the prefix cache, with or without regard to running requests."""
        scheduler = self.engine.scheduler
        force = self.rng.random() < 0.3
        idle = not len(scheduler.planner.running)
        assert scheduler.reset_prefix_cache(reset_running_requests=force) == (force or idle)
        scheduler.check_integrity()

    def live(self, num_operations: int) -> None:
        """Do operations, then run to the end and compare."""
        operations = [self.add, self.engine.step, self.abort, self.step_with_abort, self.reset]
        weights = [20, 60, 2, 2, 1]
        for _ in range(num_operations):
            self.rng.choices([*operations, self.fail_step], [*weights, 0.5])[0]()
        self.engine.run()
        for req_id in self.engine.requests:
            self.check(req_id)

    def check(self, req_id: str) -> None:
        """That request's outcome."""
        got = self.engine.collected[req_id]
        want = self.engine.reference(req_id)
        if got.finish_reason is FinishReason.ABORT:
            assert req_id in self.aborted
        elif got.finish_reason is FinishReason.ERROR:
            assert req_id in self.culprits and got.outputs[-1].error
        else:
            assert got.token_ids == want, req_id
            self.check_prompt_logprobs(req_id)
        assert got.token_ids == want[: len(got.token_ids)]

    def check_prompt_logprobs(self, req_id: str) -> None:
        """Each prompt position after the first once, in order, with the first token."""
        request = self.engine.requests[req_id]
        first, *later = self.engine.collected[req_id].outputs
        assert all(output.new_prompt_logprobs is None for output in later)
        if request.sampling_params.prompt_logprobs is None:
            assert first.new_prompt_logprobs is None
        else:
            assert first.new_prompt_logprobs is not None
            ranks = first.new_prompt_logprobs.sampled_ranks
            assert ranks == list(range(1, len(request.prompt_token_ids)))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("seed", range(6))
def test_any_history_leaves_solo_tokens_and_an_empty_pool(seed: int, cache: str) -> None:
    RandomLife(seed, cache).live(250)
