# SPDX-License-Identifier: Apache-2.0
"""What a Transformers model asks of its attention, found by running it once without values.

The model runs over a few tokens on the meta device, before any weight is read. Its attention
calls arrive here instead of at a kernel: who calls, with which heads, scale, window, soft cap
and sinks. Masks are made by a stand-in that notes what each mask would show. So what a layer asks
for is what it is given, whatever its configuration calls it.

Knows no engine layers: `base` builds them from the facts found here.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as fx_config
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.exceptions import ConfigError
from vllm.model_executor.models.transformers.building import buffers_on_meta

PROBE_IMPL = "vllm_probe"
NUM_TOKENS = 5  # not a likely number of heads or layers: a transposed dimension shows

# Keywords of the attention call that say nothing about the scores, or repeat what the mask says.
# `dropout` acts in training only; the window and causality are taken from the mask itself.
NEUTRAL_KEYWORDS = frozenset(
    {
        "cache",
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "dropout",
        "is_causal",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "seq_idx",
        "sliding_window",
        "training",
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of the model.

    Attributes:
        name: qualified name of the calling module.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_size: width of a query and a key.
        head_size_v: width of a value.
        scaling: factor on q.k; None leaves it to the layer.
        sliding_window: keys a query sees, itself included; None is all earlier ones.
        softcap: c in s -> c * tanh(s / c); None is no cap.
        s_aux: the very tensor of attention sinks that was passed; None is none.
    """

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    scaling: float | None
    sliding_window: int | None
    softcap: float | None
    s_aux: Tensor | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one pass showed.

    Attributes:
        decoder_name: the module that the model hands tokens to and takes hidden states from.
        calls: attention calls by the name of the calling module, in order.
    """

    decoder_name: str
    calls: dict[str, AttentionCall]


@dataclass(slots=True)
class _Recorder:
    """Collects the calls of one pass."""

    names: Mapping[nn.Module, str]
    masks: list[tuple[Tensor, "int | ConfigError | None"]] = field(default_factory=list)
    calls: dict[str, AttentionCall] = field(default_factory=dict)

    def note_mask(self, mask: Tensor, mask_function: Callable[..., Any]) -> None:
        try:
            self.masks.append((mask, visible_window(mask_function)))
        except ConfigError as error:
            self.masks.append((mask, error))

    def window_of(self, name: str, mask: Tensor | None) -> int | None:
        """What the mask that came with a call shows."""
        if mask is None:
            raise ConfigError(f"{name} attends without a mask: not a causal decoder")
        for known, window in self.masks:
            # Cutting a mask to the number of keys gives a view of all of it.
            if mask is known or (mask._base is known and mask.shape == known.shape):
                if isinstance(window, ConfigError):
                    raise ConfigError(f"{name}: {window}")
                return window
        raise ConfigError(
            f"{name} attends with a mask of its own making (a bias, ALiBi or a custom pattern), "
            "which cannot be applied"
        )


_recorder: ContextVar[_Recorder | None] = ContextVar("attention_probe", default=None)


def probe_attention(model: PreTrainedModel) -> ProbeResult:
    """Run `model` on the meta device and see what it asks of its attention.

    Raises:
        ConfigError: the model cannot run so, or asks for something that cannot be applied; the
            message says what.
    """
    recorder = _Recorder({module: name for name, module in model.named_modules()})
    token = _recorder.set(recorder)
    name = type(model).__name__
    try:
        with _watch_decoder(model) as decoders, _values_left_out(model):
            ids = torch.zeros((1, NUM_TOKENS), dtype=torch.long, device="meta")
            model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                position_ids=torch.zeros_like(ids),
                use_cache=False,
            )
    except ConfigError:
        raise
    except Exception as error:  # whatever the model's own code raises; the load ends here
        is_split = get_tensor_model_parallel_world_size() > 1
        raise ConfigError(
            f"{name} cannot run token by token without a cache or a state of its own"
            f"{' (or not split over ranks: try tensor_parallel_size=1)' if is_split else ''}: "
            f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        ) from error
    finally:
        _recorder.reset(token)
    if not decoders:
        raise ConfigError(f"{name} has no decoder apart from its head")
    return ProbeResult(decoders[0], recorder.calls)


@contextmanager
def _values_left_out(model: nn.Module) -> Iterator[None]:
    """Shapes only: attention and experts are noted, buffers and whatever is made lie on meta."""
    # Experts that pick their tokens themselves: let every token be picked.
    before = fx_config.meta_nonzero_assume_all_nonzero
    fx_config.meta_nonzero_assume_all_nonzero = True
    try:
        with (
            implementation(model, PROBE_IMPL),
            buffers_on_meta(model),
            torch.no_grad(),
            torch.device("meta"),
        ):
            yield
    finally:
        fx_config.meta_nonzero_assume_all_nonzero = before


@contextmanager
def _watch_decoder(model: PreTrainedModel) -> Iterator[list[str]]:
    """Names of the possible decoders that are called inside the block, in order."""
    names = {module: name for name, module in model.named_modules()}
    called: list[str] = []
    candidates = {model.base_model, model.get_decoder() or model.base_model} - {model}
    hooks = [
        module.register_forward_pre_hook(lambda m, _: called.append(names[m]))
        for module in candidates
    ]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def refuse_unknown_positions(name: str, decoder: nn.Module) -> None:
    """Refuse a decoder that cannot be told its tokens' positions.

    Raises:
        ConfigError: it takes none.
    """
    if "position_ids" not in inspect.signature(decoder.forward).parameters:
        raise ConfigError(
            f"{name} counts positions by itself ({type(decoder).__name__} takes no position_ids), "
            "which tokens of several requests in one row do not allow"
        )


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Let every part of the model call the attention and experts registered as `name`."""
    configs = {id(c): c for c in _configs(model)}.values()
    fields = ("_attn_implementation_internal", "_experts_implementation_internal")
    before = [(config, {f: getattr(config, f, None) for f in fields}) for config in configs]
    set_implementation(model, name)
    try:
        yield
    finally:
        for config, values in before:
            vars(config).update(values)


def set_implementation(model: nn.Module, name: str) -> None:
    """As `implementation`, for good."""
    for config in _configs(model):
        config._attn_implementation_internal = name
        config._experts_implementation_internal = name


def _configs(model: nn.Module) -> Iterator[PretrainedConfig]:
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PretrainedConfig):
            yield config


def visible_window(mask_function: Callable[..., Any]) -> int | None:
    """How many keys a mask shows a query, itself included; None is all earlier ones.

    The function is asked about rows at both sides of the window it shows.

    Raises:
        ConfigError: what it shows is neither all earlier keys nor the nearest ones.
    """
    far = 1 << 17
    window = _visible(mask_function, far)
    rows = [0, 1, 2, far // 3, far + 1]
    if window is not None:
        rows += [max(window - 2, 0), window - 1, window, window + 1, 2 * window, 3 * window + 1]
    for row in rows:
        shown = _visible(mask_function, row)
        expected = None if window is None or row < window else window
        if shown != expected:
            raise ConfigError(
                "its mask is neither causal nor a sliding window (chunks, blocks or a prefix)"
            )
    return window


def _visible(mask_function: Callable[..., Any], row: int) -> int | None:
    """Number of nearest keys that `row` sees; None if it sees all of 0..row and no later one."""
    with torch.device("cpu"):  # the pass around this one has no values
        keys = torch.arange(row + 3)
        zero = torch.zeros_like(keys)
        try:
            shown = torch.as_tensor(mask_function(zero, zero, zero + row, keys), dtype=torch.bool)
        except Exception as error:  # a mask that depends on the batch cannot be asked
            raise ConfigError(f"its mask depends on more than positions ({error})") from error
        shown = shown.expand_as(keys)
    if bool(shown[row + 1 :].any()):
        raise ConfigError("its attention is bidirectional: a token sees later ones")
    visible = int(shown.sum())
    if not bool(shown[row + 1 - visible : row + 1].all()) or visible == 0:
        raise ConfigError("its mask is neither causal nor a sliding window")
    return None if visible == row + 1 else visible


def _probe_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Any], **_: Any
) -> Tensor:
    """Stand-in for a mask: no values, but what it would show is noted."""
    recorder = _recorder.get()
    assert recorder is not None, "masks are made so in a probe only"
    mask = torch.empty((batch_size, 1, q_length, kv_length), device="meta")
    recorder.note_mask(mask, mask_function)
    return mask


def _probe_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Note one call; the output has the shape that attention would give it."""
    recorder = _recorder.get()
    assert recorder is not None, "this attention is for a probe only"
    name = recorder.names[module]
    if name in recorder.calls:
        raise ConfigError(f"{name} attends twice in one pass; one cache per call is needed")
    refuse_unknown_keywords(name, kwargs)
    batch, num_heads, num_tokens, head_size = query.shape
    if (batch, num_tokens) != (1, NUM_TOKENS) or key.shape[2] != NUM_TOKENS:
        raise ConfigError(
            f"{name} attends {num_tokens} queries to {key.shape[2]} keys where {NUM_TOKENS} tokens "
            "came in: it adds, drops or compresses keys"
        )
    recorder.calls[name] = AttentionCall(
        name=name,
        num_heads=num_heads,
        num_kv_heads=key.shape[1],
        head_size=head_size,
        head_size_v=value.shape[3],
        scaling=scaling,
        sliding_window=recorder.window_of(name, attention_mask),
        softcap=softcap,
        s_aux=s_aux,
    )
    return query.new_empty(1, num_tokens, num_heads, value.shape[3]), None


def _probe_experts_forward(module: nn.Module, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """Experts keep the shape of their input; which token goes where needs values."""
    return torch.empty_like(hidden_states)


def refuse_unknown_keywords(name: str, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords of an attention call that may change its result.

    Raises:
        ConfigError: one that is not known to be neutral carries a value.
    """
    for keyword, value in keywords.items():
        if value is not None and value is not False and keyword not in NEUTRAL_KEYWORDS:
            raise ConfigError(
                f"{name} passes {keyword}={_describe(value)} to its attention, which this engine "
                "cannot apply"
            )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value)[:80]


ALL_ATTENTION_FUNCTIONS[PROBE_IMPL] = _probe_attention_forward
AttentionMaskInterface.register(PROBE_IMPL, _probe_mask)  # looked up on the class
ALL_EXPERTS_FUNCTIONS[PROBE_IMPL] = _probe_experts_forward
