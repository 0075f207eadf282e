# SPDX-License-Identifier: Apache-2.0
"""What tests of split models run on each rank."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.models.transformers.tiny import largest_difference
from vllm.exceptions import VLLMError
from vllm.model_executor.layers.attention import Attention


def models(cases: Mapping[str, tuple[Path, Callable[[], Any]]], world: int) -> dict[str, Any]:
    """Serve each model; the largest difference to Transformers and what each layer attends with.

    A model that is refused gives the message.

    Args:
        cases: a checkpoint, and what makes the Transformers model with the same weights.
        world: number of ranks.
    """
    import torch.distributed as dist

    from vllm import LLM

    dist.init_process_group("gloo")  # once: each engine then makes a group in this world
    results: dict[str, Any] = {}
    for name, (path, reference) in cases.items():
        try:
            llm = LLM(
                model=str(path),
                model_impl="transformers",
                dtype="float32",
                skip_tokenizer_init=True,
                max_model_len=64,
                kv_cache_memory_bytes=1 << 22,
                max_num_batched_tokens=16,
                tensor_parallel_size=world,
                distributed_executor_backend="external_launcher",
                seed=0,
            )
        except VLLMError as error:
            results[name] = str(error)
            continue
        [layers] = llm.apply_model(attention_layers)
        results[name] = (largest_difference(llm, reference()), layers)
        llm.shutdown()
    return results


def attention_layers(model: Any) -> dict[str, dict[str, Any]]:
    """Each attention layer's heads and sinks on this rank, by name."""
    return {
        layer.layer_name: {
            "num_heads": layer.num_heads,
            "num_kv_heads": layer.num_kv_heads,
            "sinks": None if layer.sinks is None else layer.sinks.detach().clone(),
        }
        for layer in model.modules()
        if isinstance(layer, Attention)
    }
