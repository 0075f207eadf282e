# SPDX-License-Identifier: Apache-2.0
"""Text to token ids: where the begin token is settled, and the thread that long texts take.

Knows no engine and no server; both encode through here, so that a text has one list of ids.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, TypeVar

from vllm.exceptions import VLLMValidationError

T = TypeVar("T")

# Texts up to this length are tokenized in the event loop; longer ones would stall it.
LONG_TEXT_CHARS = 4_096


def encode_text(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of `text`, the same for every entry point.

    With `add_special_tokens`, a tokenizer that adds the begin token adds it once: a text that
    begins with the begin token's own text (one that a chat template has rendered, say) gets
    exactly one, not two. Without, the ids are those of the text as it stands.

    Args:
        tokenizer: a Transformers tokenizer.
        add_special_tokens: let the tokenizer add its begin and end tokens.
    """
    ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=add_special_tokens)]
    return without_repeated_bos(tokenizer, ids) if add_special_tokens else ids


def without_repeated_bos(tokenizer: Any, token_ids: Sequence[int]) -> list[int]:
    """`token_ids` with one begin token where they begin with several."""
    bos = getattr(tokenizer, "bos_token_id", None)
    start = 0
    while bos is not None and list(token_ids[start : start + 2]) == [bos, bos]:
        start += 1
    return list(token_ids[start:])


def check_text_can_fit(tokenizer: Any, num_chars: int, max_model_len: int) -> None:
    """Refuse a text that is too long whatever its tokens are, before it takes a core to tokenize.

    No token stands for more characters than the longest entry of the vocabulary has.

    Raises:
        VLLMValidationError: `num_chars` is above that times `max_model_len`.
    """
    limit = max_model_len * _longest_token_chars(tokenizer)
    if num_chars > limit:
        raise VLLMValidationError(
            f"the prompt has {num_chars} characters; this model's context of {max_model_len} "
            f"tokens holds at most {limit}, so shorten it",
            parameter="prompt",
            value=num_chars,
        )


@lru_cache(maxsize=4)
def _longest_token_chars(tokenizer: Any) -> int:
    return max(map(len, tokenizer.get_vocab()))


async def run_tokenizer(call: Callable[..., T], *args: Any, size: int) -> T:
    """Call `call(*args)`, off the event loop when `size` characters are many.

    One thread serves all long texts: they are rare, take all of a core, and would slow the loop
    down if many ran at once. Short texts may be encoded beside it, since nobody here sets a
    tokenizer's truncation or padding, the state that concurrent calls would trip over.
    """
    if size <= LONG_TEXT_CHARS:
        return call(*args)
    return await asyncio.get_running_loop().run_in_executor(_thread(), lambda: call(*args))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
