# SPDX-License-Identifier: Apache-2.0
"""The hash chain: equal exactly for equal tokens and extra keys."""

import os
from array import array

from tests.v1.core.utils import create_request
from vllm.v1.core.kv_cache_utils import BlockHash, BlockHasher
from vllm.v1.request import Request

SEED = bytes(32)


def chain(
    tokens: list[int], salt: str | None = None, block_size: int = 4, seed: bytes | None = SEED
) -> list[BlockHash]:
    request = Request(create_request("r", tokens, salt=salt), BlockHasher(block_size, seed))
    return request.block_hashes


def test_only_full_blocks_are_hashed() -> None:
    assert [len(chain(list(range(n)))) for n in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_equal_prefixes_share_hashes_and_a_change_alters_all_after_it() -> None:
    a, b = chain([1, 2, 3, 4, 5, 6, 7, 8]), chain([1, 2, 3, 4, 5, 6, 7, 9])
    assert a[0] == b[0] and a[1] != b[1]
    c = chain([9, 2, 3, 4, 5, 6, 7, 8])
    assert not set(a) & set(c)


def test_same_block_at_another_place_has_another_hash() -> None:
    hashes = chain([1, 2, 3, 4] * 3)
    assert len(set(hashes)) == 3


def test_output_tokens_extend_the_chain_as_if_they_had_been_prompt() -> None:
    hasher = BlockHasher(4, SEED)
    request = Request(create_request("r", [1, 2, 3]), hasher)
    for token in (4, 5, 6, 7, 8, 9):
        request.append_output_token(token)
    assert request.block_hashes == chain(list(range(1, 10))) == hasher.chain(request)


def test_salted_unsalted_and_empty_salt_never_share() -> None:
    tokens = [1, 2, 3, 4]
    hashes = [chain(tokens, salt)[0] for salt in (None, "", "a", "b", "ab", "\ud800")]
    assert len(set(hashes)) == 6
    assert chain(tokens, "a") == chain(tokens, "a")


def test_a_salt_cannot_pose_as_tokens() -> None:
    eight = chain([1, 2, 3, 4, 5, 6, 7, 8])
    packed = array("q", [1, 2, 3, 4]).tobytes().decode("latin-1")
    for salt in (packed, packed.encode("latin-1").hex(), "\x01" + packed):
        assert not set(chain([5, 6, 7, 8], salt)) & set(eight)


def test_adjacent_token_ids_cannot_run_into_each_other() -> None:
    assert chain([1, 11, 1, 1]) != chain([11, 1, 1, 1])
    assert chain([256, 0, 0, 0]) != chain([0, 1, 0, 0])


def test_seed_is_drawn_anew_for_each_hasher() -> None:
    tokens = [1, 2, 3, 4]
    assert chain(tokens, seed=None) != chain(tokens, seed=None)
    seed = os.urandom(32)
    assert chain(tokens, seed=seed) == chain(tokens, seed=seed)
