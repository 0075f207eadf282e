# SPDX-License-Identifier: Apache-2.0
"""How a prefix is named: the hash chain over the blocks of a request.

Owns the encoding of tokens and extra keys. Knows nothing of the blocks that hold the content.
The plan of the cache's memory is in `kv_cache_config`, re-exported here under upstream's name.
"""

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence

from vllm.v1.core.block_hash import BlockHash
from vllm.v1.core.kv_cache_config import get_kv_cache_config
from vllm.v1.request import Request

__all__ = ["BlockHash", "BlockHasher", "get_kv_cache_config"]

_ROOT = b"\x00"
_BLOCK = b"\x01"


class BlockHasher:
    """Extends the hash chain of a request: one digest a full block.

    root  = H(0 | seed | kind | len | payload | kind | len | payload ...)   extra keys
    block = H(1 | parent digest, 32 bytes | token ids, 8 bytes each)

    The leading byte keeps roots and blocks apart, every field has a fixed width or its length
    before it, and extra keys carry their kind: no salt can pose as tokens or as another key.
    A digest equality is therefore a SHA-256 collision or equal content. Extra keys sit in the
    root alone, since each digest depends on all before it.

    Args:
        block_size: tokens a digest adds; divides the block size of every group.
        seed: 32 bytes; None draws them. Digests never leave the process, so nothing needs them
            to be the same in two runs, and drawn ones cannot be computed outside of it.
    """

    def __init__(self, block_size: int, seed: bytes | None = None) -> None:
        self.block_size = block_size
        self._seed = os.urandom(32) if seed is None else seed
        assert len(self._seed) == 32, "the seed has 32 bytes"

    def __call__(self, request: Request) -> list[BlockHash]:
        """Digests of the blocks that have become full since `request.block_hashes`."""
        known = request.block_hashes
        start, full = len(known), request.num_tokens // self.block_size
        if start == full:
            return []
        parent = known[-1] if known else self._root(request)
        return self._extend(parent, request.all_token_ids, start, full)

    def chain(self, request: Request) -> list[BlockHash]:
        """The whole chain anew from the tokens, for checks."""
        full = request.num_tokens // self.block_size
        return self._extend(self._root(request), request.all_token_ids, 0, full)

    def _extend(
        self, parent: BlockHash, token_ids: Sequence[int], start: int, end: int
    ) -> list[BlockHash]:
        hashes = []
        for i in range(start, end):
            tokens = token_ids[i * self.block_size : (i + 1) * self.block_size]
            packed = array("q", tokens).tobytes()
            parent = BlockHash(hashlib.sha256(_BLOCK + parent + packed).digest())
            hashes.append(parent)
        return hashes

    def _root(self, request: Request) -> BlockHash:
        digest = hashlib.sha256(_ROOT + self._seed)
        for kind, payload in _extra_keys(request):
            digest.update(struct.pack("<I", len(kind)) + kind)
            digest.update(struct.pack("<Q", len(payload)) + payload)
        return BlockHash(digest.digest())


def _extra_keys(request: Request) -> list[tuple[bytes, bytes]]:
    """What besides the tokens decides the cached keys and values, each with its kind."""
    salt = request.core_request.cache_salt
    return [] if salt is None else [(b"salt", salt.encode("utf-8", "surrogatepass"))]
