# SPDX-License-Identifier: Apache-2.0
"""What is resolved, as a type: the arguments that `resolve` reads, however they were typed.

Stands between `EngineArgs`, which is resolved, and `resolve`, so that neither imports the other
for a name.
"""

from typing import Any, Protocol


class Arguments(Protocol):
    """The arguments; see `EngineArgs` for what each is."""

    model: str | None
    served_model_name: str | tuple[str, ...] | None
    tokenizer: str | None
    tokenizer_mode: str
    skip_tokenizer_init: bool
    revision: str | None
    tokenizer_revision: str | None
    trust_remote_code: bool
    dtype: Any
    max_model_len: int | str | None
    hf_overrides: dict[str, Any] | None
    model_impl: str
    chat_template: str | None
    load_format: str
    download_dir: str | None
    block_size: int | None
    gpu_memory_utilization: float | None
    kv_cache_memory_bytes: int | str | None
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool | None
    watermark: float
    disable_hybrid_kv_cache_manager: bool | None
    max_num_batched_tokens: int | str | None
    max_num_seqs: int | None
    enable_chunked_prefill: bool | None
    long_prefill_token_threshold: int
    scheduling_policy: str
    max_waiting_requests: int | None
    max_waiting_tokens: int | None
    seed: int | None
    generation_config: str
    override_generation_config: dict[str, Any] | None
    max_logprobs: int
    logprobs_mode: str
    structured_outputs_config: dict[str, Any] | None
    tensor_parallel_size: int
    distributed_executor_backend: str | None
    attention_backend: str | None
    disable_log_stats: bool
    log_interval_s: float
