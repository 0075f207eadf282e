# SPDX-License-Identifier: Apache-2.0
"""The attention layer of decoder models: checks what a model asks, picks a backend, runs it.

Owns the layer's name, limits and its view of the KV cache. Knows nothing of projections or
rotary embeddings: queries and keys arrive rotated. What it cannot apply it refuses by name.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm.config import CacheConfig, get_current_vllm_config
from vllm.exceptions import ConfigError
from vllm.forward_context import get_forward_context
from vllm.v1.attention.backend import AttentionBackend, AttentionSelectorConfig, AttentionType
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Attention(nn.Module):
    """Multi-head, grouped or multi-query attention over the paged KV cache.

    Args:
        num_heads: query heads on this rank.
        head_size: width of a query and a key.
        scale: factor on q.k.
        num_kv_heads: key/value heads on this rank; None is `num_heads`.
        cache_config: None is the current configuration's.
        logits_soft_cap: c in s -> c * tanh(s / c); None or 0 is no cap.
        per_layer_sliding_window: keys a query sees, itself included; None is all of them. The
            layer's own value is the only one: no model-wide window is applied behind it.
        prefix: the layer's unique name.
        attn_type: a value of `AttentionType`.
        attn_backend: the backend's class; None lets the selector choose.
        head_size_v: width of a value; None is `head_size`.
        extra_impl_args: `sinks`, a parameter of shape [num_heads] that is read where it is, so
            that a reload shows at once.

    Raises:
        ConfigError: something asked for is not supported, or no backend supports it.
        ValueError: another layer has the same name.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        use_alibi_sqrt: bool | None = None,
        cache_config: CacheConfig | None = None,
        quant_config: Any = None,
        logits_soft_cap: float | None = None,
        per_layer_sliding_window: int | None = None,
        prefix: str = "",
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        mm_prefix_clamp_sliding_window: bool = False,
        attn_backend: type[AttentionBackend] | None = None,
        head_size_v: int | None = None,
        **extra_impl_args: Any,
    ) -> None:
        super().__init__()
        _refuse_unsupported(
            prefix,
            alibi_slopes=alibi_slopes,
            use_alibi_sqrt=use_alibi_sqrt or None,
            quant_config=quant_config,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            mm_prefix_clamp_sliding_window=mm_prefix_clamp_sliding_window or None,
            **{name: value for name, value in extra_impl_args.items() if name != "sinks"},
        )
        vllm_config = get_current_vllm_config()
        cache_config = cache_config or vllm_config.cache_config
        self.layer_name = prefix
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_size = head_size
        self.head_size_v = head_size if head_size_v is None else head_size_v
        self.scale = scale
        self.sliding_window = per_layer_sliding_window
        self.logits_soft_cap = logits_soft_cap or None
        self.attn_type = attn_type
        self.dtype = vllm_config.model_config.dtype
        self.block_size = cache_config.block_size
        sinks = extra_impl_args.get("sinks")
        self.has_sink = sinks is not None
        vars(self)["sinks"] = sinks  # not registered: it is the model's, under its own name
        self._check_numbers(sinks)
        self.attn_backend = get_attn_backend(
            self._selector_config(cache_config),
            backend=attn_backend or vllm_config.attention_backend,
        )
        # The class is Any: each backend has its own metadata type, and the step provides it.
        self.impl: Any = self.attn_backend.get_impl_cls()(
            num_heads,
            head_size,
            scale,
            num_kv_heads=self.num_kv_heads,
            sliding_window=self.sliding_window,
            logits_soft_cap=self.logits_soft_cap,
            attn_type=attn_type,
            sinks=sinks,
        )
        self.kv_cache = torch.empty(0)
        self._register(vllm_config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend this step's queries to all cached keys, after storing this step's.

        Args:
            query: [num_tokens, num_heads * head_size].
            key: [num_tokens, num_kv_heads * head_size].
            value: [num_tokens, num_kv_heads * head_size_v].

        Returns:
            [num_tokens, num_heads * head_size_v], dtype of `query`.
        """
        num_tokens = query.shape[0]
        output = query.new_empty(num_tokens, self.num_heads, self.head_size_v)
        attn_metadata = get_forward_context().attn_metadata
        if attn_metadata is None:
            return output.zero_().view(num_tokens, -1)
        self.impl.forward(
            self,
            query.view(num_tokens, self.num_heads, self.head_size),
            key.view(num_tokens, self.num_kv_heads, self.head_size),
            value.view(num_tokens, self.num_kv_heads, self.head_size_v),
            kv_cache=self.kv_cache,
            attn_metadata=attn_metadata[self.layer_name],
            output=output,
        )
        return output.view(num_tokens, -1)

    def get_attn_backend(self) -> type[AttentionBackend]:
        """The backend that was chosen."""
        return self.attn_backend

    def get_kv_cache_spec(self) -> KVCacheSpec:
        """What this layer keeps in the cache."""
        dtype = str(self.dtype).removeprefix("torch.")
        if self.sliding_window is not None:
            return SlidingWindowSpec(
                block_size=self.block_size,
                num_kv_heads=self.num_kv_heads,
                head_size=self.head_size,
                head_size_v=self.head_size_v,
                dtype=dtype,
                sliding_window=self.sliding_window,
            )
        return FullAttentionSpec(
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            head_size_v=self.head_size_v,
            dtype=dtype,
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the cache to read and write, in the backend's shape."""
        self.kv_cache = kv_cache

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Let the implementation refresh what it derives from parameters."""
        self.impl.process_weights_after_loading(act_dtype)

    def extra_repr(self) -> str:
        """What the layer applies, for logs and for people."""
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"head_size={self.head_size}, scale={self.scale:g}, window={self.sliding_window}, "
            f"soft_cap={self.logits_soft_cap}, sinks={self.has_sink}, "
            f"backend={self.attn_backend.get_name()}"
        )

    def _check_numbers(self, sinks: Any) -> None:
        name = self.layer_name
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{name}: num_heads={self.num_heads} is not a multiple of num_kv_heads="
                f"{self.num_kv_heads}"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(
                f"{name}: per_layer_sliding_window={self.sliding_window}: pass at least 1, or "
                "None for full attention"
            )
        if self.logits_soft_cap is not None and self.logits_soft_cap < 0:
            raise ConfigError(f"{name}: logits_soft_cap={self.logits_soft_cap}: pass above 0")
        if sinks is None:
            return
        if not isinstance(sinks, nn.Parameter) or sinks.shape != (self.num_heads,):
            came = tuple(sinks.shape) if isinstance(sinks, Tensor) else sinks
            raise ConfigError(
                f"{name}: sinks must be a Parameter of shape ({self.num_heads},), one logit per "
                f"query head of this rank; got {type(sinks).__name__} {came}"
            )

    def _selector_config(self, cache_config: CacheConfig) -> AttentionSelectorConfig:
        return AttentionSelectorConfig(
            head_size=self.head_size,
            head_size_v=self.head_size_v,
            dtype=self.dtype,
            block_size=cache_config.block_size,
            has_sink=self.has_sink,
            has_sliding_window=self.sliding_window is not None,
            has_logits_soft_cap=self.logits_soft_cap is not None,
            attn_type=self.attn_type,
        )

    def _register(self, vllm_config: "VllmConfig") -> None:
        layers = vllm_config.static_forward_context
        if self.layer_name in layers:
            raise ValueError(
                f"two attention layers are named {self.layer_name!r}; give each its own prefix"
            )
        layers[self.layer_name] = self


def _refuse_unsupported(prefix: str, **values: Any) -> None:
    """Raise if any of `values` asks for something."""
    for name, value in values.items():
        if value is not None:
            raise ConfigError(
                f"attention layer {prefix!r}: {name}={value!r} is not supported by this engine; "
                "the model cannot be served right"
            )
