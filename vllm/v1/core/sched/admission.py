# SPDX-License-Identifier: Apache-2.0
"""What is refused at the door: requests that can never run. How many may wait is not judged here
but in the front end, where a refusal costs nothing."""

from vllm.exceptions import VLLMValidationError
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.engine.messages import EngineCoreRequest


def check_can_ever_run(
    request: EngineCoreRequest, max_model_len: int, kv_cache_manager: KVCacheManager
) -> None:
    """Refuse a request that would wait, or be preempted, for ever.

    Raises:
        VLLMValidationError: the prompt is empty or leaves no room for a token, or prompt and
            output together need more blocks than there are.
    """
    num_prompt_tokens = len(request.prompt_token_ids)
    if not 0 < num_prompt_tokens < max_model_len:
        raise VLLMValidationError(
            f"the prompt has {num_prompt_tokens} tokens; pass at least 1 and at most "
            f"{max_model_len - 1}, so that one more fits into max_model_len={max_model_len}",
            parameter="prompt_token_ids",
            value=num_prompt_tokens,
        )
    max_tokens = request.sampling_params.max_tokens
    num_tokens = max_model_len
    if max_tokens is not None:
        num_tokens = min(num_tokens, num_prompt_tokens + max_tokens)
    # The last token is returned, never fed: it needs no slot.
    if not kv_cache_manager.can_ever_fit(num_tokens - 1):
        raise VLLMValidationError(
            f"{num_prompt_tokens} prompt tokens with max_tokens={max_tokens} do not fit into the "
            "KV cache even alone; shorten either or give the cache more memory",
            parameter="max_tokens",
            value=max_tokens,
        )
