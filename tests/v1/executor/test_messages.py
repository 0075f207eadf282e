# SPDX-License-Identifier: Apache-2.0
"""What crosses to workers comes out as it went in, and nothing else crosses."""

import numpy as np
import pytest

from vllm.exceptions import ConfigError, VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    SchedulerOutput,
)
from vllm.v1.executor import messages
from vllm.v1.executor.messages import STEP
from vllm.v1.executor.remote import answer_call
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

SIZES = {"block_size": 4, "num_kv_heads": 1, "head_size": 2, "head_size_v": 3, "dtype": "float32"}


def make_step(req_id: str = "a", seed: int = 1, token: int = 5) -> SchedulerOutput:
    params = SamplingParams(seed=seed, logprobs=2, stop_token_ids=[7])
    return SchedulerOutput(
        scheduled_new_reqs=[NewRequestData(req_id, [1, token], [9], params, ([1], [2, 3]), 0)],
        scheduled_cached_reqs=[CachedRequestData("b", ([4], []), 6)],
        num_scheduled_tokens={req_id: 2, "b": 1},
        finished_req_ids={"x"},
        preempted_req_ids={"y"},
        grammar_req_ids=[req_id],
    )


def test_a_step_crosses_whole() -> None:
    step = make_step()
    bitmask = np.arange(-3, 3, dtype=np.int32).reshape(2, 3)[:, ::-1]
    data = messages.encode_call(7, STEP, (step, GrammarOutput(["a", "b"], bitmask)), {})
    call_id, method, (got, grammar), kwargs = messages.decode_call(data)
    assert (call_id, method, kwargs) == (7, STEP, {})
    assert got == step
    assert grammar.req_ids == ["a", "b"]
    assert grammar.bitmask.dtype == np.int32 and np.array_equal(grammar.bitmask, bitmask)
    _, _, (_, nothing), _ = messages.decode_call(messages.encode_call(7, STEP, (step, None), {}))
    assert nothing is None


def test_results_cross_whole() -> None:
    rows = LogprobsLists([[1, 2]], [[-0.5, float("-inf")]], [1])
    output = ModelRunnerOutput({"a": [1]}, {"a": rows}, {"b": rows}, {"c": "why"})
    reply = messages.decode_reply(messages.encode_result(3, STEP, output))
    assert reply.call_id == 3 and reply.error_type is None
    assert messages.decode_result(reply, STEP) == output


def test_records_of_the_cache_keep_their_classes() -> None:
    full, window = FullAttentionSpec(**SIZES), SlidingWindowSpec(**SIZES, sliding_window=9)
    config = KVCacheConfig(
        3,
        (KVCacheTensor(64, ("a", "b")),),
        (KVCacheGroupSpec(("a",), full), KVCacheGroupSpec(("b",), window)),
    )
    _, _, args, _ = messages.decode_call(messages.encode_call(1, "initialize", (config,), {}))
    assert args == [config]
    reply = messages.decode_reply(messages.encode_result(1, "specs", {"a": full, "b": window}))
    assert messages.decode_result(reply, "specs") == {"a": full, "b": window}
    with pytest.raises(TypeError, match="no record 'Any'"):
        messages.untag_records({"$record": "Any"})


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="apply_model: only numbers, texts, lists"):
        messages.encode_call(1, "apply_model", (object(),), {})
    with pytest.raises(VLLMValidationError, match="<lambda>: the workers run in other processes"):
        messages.encode_call(1, lambda worker: worker, (), {})


def test_answers_carry_results_and_errors() -> None:
    def call(method: str, *args: int) -> int:
        if method == "refuse":
            raise ConfigError("not so")
        if method == "break":
            raise KeyError("x")
        return sum(args)

    def answer(method: str, *args: int) -> messages.WorkerReply:
        return messages.decode_reply(
            answer_call(call, 1, messages.encode_call(5, method, args, {}))
        )

    assert messages.decode_result(answer("add", 1, 2), "add") == 3

    def error(method: str) -> Exception:
        reply = answer(method)
        return messages.rebuild_error(reply.error_type, reply.error_message)

    refused = error("refuse")
    assert type(refused) is ConfigError and str(refused) == "not so"
    broken = error("break")
    assert type(broken) is RuntimeError and str(broken) == "KeyError: 'x'"


def test_only_rank_0_sends_what_a_step_brought() -> None:
    data = messages.encode_call(1, STEP, (make_step(), None), {})
    output = ModelRunnerOutput({"a": [1]})
    for rank, expected in ((0, output), (1, None)):
        reply = messages.decode_reply(answer_call(lambda *_: output, rank, data))
        assert messages.decode_result(reply, STEP) == expected


def test_a_fingerprint_is_of_content_not_of_names() -> None:
    print_ = messages.step_fingerprint
    assert print_(make_step("a")) == print_(make_step("other"))
    assert print_(make_step(seed=1)) != print_(make_step(seed=2))
    assert print_(make_step(token=5)) != print_(make_step(token=6))


def test_a_fingerprint_is_of_what_grammars_allow_too() -> None:
    def print_(req_id: str, row: str, *words: int) -> int:
        grammar = GrammarOutput([row], np.array([words], dtype=np.int32))
        return messages.step_fingerprint(make_step(req_id), grammar)

    assert print_("a", "a", 1, 2) == print_("other", "other", 1, 2)
    assert print_("a", "a", 1, 2) != print_("a", "a", 1, 3)
    assert print_("a", "a", 1, 2) != print_("a", "b", 1, 2)
    assert print_("a", "a", 1, 2) != messages.step_fingerprint(make_step("a"))
