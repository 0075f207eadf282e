# SPDX-License-Identifier: Apache-2.0
"""The attention function that a served Transformers model calls: into the engine's layer.

Registered with Transformers under "vllm". The layer hangs off the calling module; scale, window,
soft cap and sinks were given to it when it was made, from what the module asked for then.
"""

from typing import Any

from torch import Tensor, nn

from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.transformers.probe import refuse_unknown_keywords

VLLM_ATTN_ATTR = "attn"


def vllm_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend through the module's attention layer.

    Args:
        module: the calling module; its layer is `module.attn`.
        query: [1, num_heads, T, head_size].
        key: [1, num_kv_heads, T, head_size].
        value: [1, num_kv_heads, T, head_size_v].
        attention_mask: must be None: the layer masks by itself.
        scaling: what the layer was made with.
        softcap: what the layer was made with.
        s_aux: attention sinks, the parameter that the layer was made with.
        **kwargs: further keywords of the call; none may carry a value that changes scores.

    Returns:
        [1, T, num_heads, head_size_v], and None in place of the weights.

    Raises:
        ConfigError: a keyword carries a value that is not applied.
        ValueError: a mask came, or another scale, soft cap or sinks than the layer's.
    """
    layer: Attention = module.attn  # type: ignore[assignment]
    if attention_mask is not None:
        raise ValueError(f"{layer.layer_name}: the model passes a mask; only the layer masks")
    if (scaling is not None and scaling != layer.scale) or softcap != layer.logits_soft_cap:
        raise ValueError(
            f"{layer.layer_name}: the model passes scaling={scaling} and softcap={softcap}, the "
            f"layer applies {layer.scale} and {layer.logits_soft_cap}"
        )
    check_sinks(layer, s_aux)
    refuse_unknown_keywords(layer.layer_name, kwargs)
    _, num_heads, num_tokens, _ = query.shape
    # Heads came before tokens; in memory most models have them after, so these are mostly views.
    output = layer(
        query.transpose(1, 2).reshape(num_tokens, -1),
        key.transpose(1, 2).reshape(num_tokens, -1),
        value.transpose(1, 2).reshape(num_tokens, -1),
    )
    return output.view(1, num_tokens, num_heads, -1), None


def check_sinks(layer: Attention, s_aux: Tensor | None) -> None:
    """Fail if the model passes other attention sinks than its layer applies.

    The object is compared, not its values: a copy would part from the layer's at the next load.

    Raises:
        ValueError: they differ, or one side has none.
    """
    if s_aux is layer.sinks:
        return
    if s_aux is None:
        raise ValueError(f"{layer.layer_name} applies attention sinks that the model did not pass")
    if layer.sinks is None:
        raise ValueError(
            f"{layer.layer_name}: the model passes attention sinks of shape {list(s_aux.shape)}, "
            "which were not given to the layer, so they would be dropped"
        )
    raise ValueError(
        f"{layer.layer_name}: the attention sinks that the model passes are not the parameter "
        "that the layer applies"
    )
