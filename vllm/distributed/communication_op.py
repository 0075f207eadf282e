# SPDX-License-Identifier: Apache-2.0
"""Collectives over the tensor-parallel ranks, as layers call them; with one rank no-ops."""

from vllm.distributed.parallel_state import (
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)

__all__ = ["tensor_model_parallel_all_gather", "tensor_model_parallel_all_reduce"]
