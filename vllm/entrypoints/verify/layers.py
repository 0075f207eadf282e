# SPDX-License-Identifier: Apache-2.0
"""What each attention layer of a loaded model applies, read from the layers themselves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One attention layer on this rank.

    Attributes:
        name: the layer's unique name.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_size: width of a query and a key.
        head_size_v: width of a value.
        scale: factor on q.k.
        window: keys a query sees, itself included; None is all of them.
        soft_cap: c in s -> c * tanh(s / c); None is no cap.
        sinks: least and largest attention sink; None if the layer has none.
        backend: what computes it.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: tuple[float, float] | None
    backend: str


def attention_layers(model: "nn.Module") -> list[LayerFacts]:
    """The facts of every attention layer, in the order of the model."""
    from vllm.model_executor.layers.attention import Attention

    return [_facts(layer) for layer in model.modules() if isinstance(layer, Attention)]


def _facts(layer: "nn.Module") -> LayerFacts:
    from vllm.model_executor.layers.attention import Attention

    assert isinstance(layer, Attention)
    return LayerFacts(
        name=layer.layer_name,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        head_size_v=layer.head_size_v,
        scale=layer.scale,
        window=layer.sliding_window,
        soft_cap=layer.logits_soft_cap,
        sinks=None if layer.sinks is None else _range(layer.sinks),
        backend=layer.get_attn_backend().get_name(),
    )


def _range(sinks: "nn.Parameter") -> tuple[float, float]:
    return float(sinks.min()), float(sinks.max())
