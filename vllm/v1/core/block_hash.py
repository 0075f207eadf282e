# SPDX-License-Identifier: Apache-2.0
"""The name of a cached prefix. How it is computed is in `kv_cache_utils`."""

from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""SHA-256 digest that stands for every token up to the end of a block, and the extra keys."""
