# SPDX-License-Identifier: Apache-2.0
"""A decoder whose layers are Transformers' modules and whose linears, norms and attention are ours.

In the order of construction:

1. the model is built on the meta device from its configuration            (building)
2. its modules are fused and its linear layers replaced                    (recursive_replace)
3. it runs once without values; each attention call says what it needs     (probe)
4. an attention layer is made for each call and hung on the calling module
5. what is left on meta gets memory                                        (init_parameters)
6. the checkpoint fills it                                                 (load_weights)
7. one pass with values shows that tokens meet in attention only           (independence)

Anything that cannot be applied ends the load by step 4, before weights are read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.sharding import require_tp_plan
from vllm.model_executor.model_loader.accounting import note_ignored
from vllm.model_executor.model_loader.weight_utils import AutoWeightsLoader, ShardId, WeightsMapper
from vllm.model_executor.models.transformers.attention_interface import VLLM_ATTN_ATTR
from vllm.model_executor.models.transformers.building import build_on_meta
from vllm.model_executor.models.transformers.fuser import get_fusers
from vllm.model_executor.models.transformers.fusers.attention import VLLM_ATTN_IMPL, AttentionFuser
from vllm.model_executor.models.transformers.fusers.moe import MoEBlockFuser
from vllm.model_executor.models.transformers.fusers.rms_norm import RMSNormFuser
from vllm.model_executor.models.transformers.independence import (
    check_independence,
    find_position_offset,
)
from vllm.model_executor.models.transformers.linears import replace_linear, style_of
from vllm.model_executor.models.transformers.probe import (
    AttentionCall,
    probe_attention,
    refuse_unknown_positions,
    set_implementation,
)
from vllm.model_executor.models.transformers.static_checks import (
    refuse_by_configuration,
    refuse_by_modules,
)
from vllm.model_executor.models.transformers.ties import TiedParameters
from vllm.model_executor.models.transformers.vocabulary import split_vocabulary
from vllm.model_executor.models.transformers.weights import CheckpointConversion

logger = init_logger(__name__)

# Tables that old checkpoints store although they follow from the configuration.
DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias")


class Base(nn.Module):
    """The part that every Transformers model shares; mixins add heads and experts.

    Attributes:
        hf_model: Transformers' model. Its children are this module's children, under the same
            names, so parameters are called as in the checkpoint; it is no child itself.
        hf_decoder: the part of it between tokens and hidden states.
        position_offset: what the model's first position is counted as.
        attention_fusers: the attention call of each module that has one, by qualified name.
        attention_calls: what each asked for.
        expert_names: modules with stacked expert weights, by qualified name.
    """

    hf_model: PreTrainedModel
    hf_decoder: nn.Module

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        refuse_by_configuration(model_config)
        self.vllm_config = vllm_config
        self.config = model_config.hf_text_config
        self.dtype = model_config.dtype
        self.packed_modules_mapping: dict[str, list[str]] = {}
        self.attention_fusers: dict[str, AttentionFuser] = {}
        self.expert_names: list[str] = []
        self._stacked: dict[str, tuple[str, ShardId]] = {}
        model = build_on_meta(self.config, self.dtype)
        vars(self)["hf_model"] = model  # no child: its children are
        self._conversion = CheckpointConversion(model)
        self._buffer_names = {n for n in model.state_dict() if n in dict(model.named_buffers())}
        refuse_by_modules(model)
        set_implementation(model, VLLM_ATTN_IMPL)
        with torch.device("meta"):
            self.recursive_replace()
        found = probe_attention(model)
        self.attention_calls = found.calls
        vars(self)["hf_decoder"] = model.get_submodule(found.decoder_name)
        self.position_offset = 0
        self._check_calls()
        self._create_attention_instances(prefix)
        for name, child in model.named_children():
            self.add_module(name, child)
        self.init_parameters()
        self._ties = TiedParameters(self, model.all_tied_weights_keys)
        self._ties.tie()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] int64, [T] int64 -> [T, hidden_size]."""
        if self.position_offset:
            self._refuse_padding(input_ids)
        output = self.hf_decoder(
            input_ids=input_ids.unsqueeze(0),
            position_ids=(positions + self.position_offset).unsqueeze(0),
            use_cache=False,
        )
        hidden_states: Tensor = output[0]
        return hidden_states.squeeze(0)

    def _refuse_padding(self, input_ids: Tensor) -> None:
        """Models that count from beyond the padding token's id do not count padding at all."""
        if bool((input_ids == self.config.pad_token_id).any()):
            raise ValueError(
                f"the padding token {self.config.pad_token_id} is in the text: this model gives it "
                "and all that follows other positions; leave it out"
            )

    def recursive_replace(self) -> None:
        """Fuse modules and replace linear layers, all over the model."""
        model = self.hf_model
        plan: Mapping[str, str] = model._tp_plan or {}
        require_tp_plan(plan, type(model).__name__)
        if get_tensor_model_parallel_world_size() > 1:
            plan = {**split_vocabulary(model), **plan}
        self._replace_children(model, "", plan)

    def _replace_children(self, module: nn.Module, prefix: str, plan: Mapping[str, str]) -> None:
        for name, child in list(module.named_children()):
            qualname = f"{prefix}.{name}" if prefix else name
            if type(child) is nn.Linear:
                setattr(module, name, self._replace_linear(child, qualname, plan))
                continue
            for fuser in get_fusers(child).for_instance(child, self.vllm_config):
                if get_tensor_model_parallel_world_size() > 1:
                    if not fuser.fits_tp_plan(qualname, plan):
                        continue
                    plan = {**fuser.tp_plan(qualname), **plan}
                if isinstance(fuser, RMSNormFuser):
                    child = fuser.replacement(child)
                    setattr(module, name, child)
                if isinstance(fuser, AttentionFuser):
                    self.attention_fusers[qualname] = fuser
                if isinstance(fuser, MoEBlockFuser):
                    self.expert_names.append(qualname)
                fuser.fuse(child, qualname, self.vllm_config)
                self._stacked |= fuser.orig_to_new_stacked(qualname)
                self.packed_modules_mapping |= fuser.packed_modules_mapping
            self._replace_children(child, qualname, plan)

    def _replace_linear(self, linear: nn.Linear, name: str, plan: Mapping[str, str]) -> nn.Module:
        return replace_linear(linear, style_of(name, plan), name)

    def _check_calls(self) -> None:
        """Every layer attends through the interface, and the decoder takes positions."""
        name, num_layers = type(self.hf_model).__name__, self.config.num_hidden_layers
        if len(self.attention_calls) != num_layers:
            raise ConfigError(
                f"{name} has {num_layers} layers of which {len(self.attention_calls)} attend "
                "through Transformers' attention interface; the others (state-space, recurrent or "
                "convolutional layers, or attention of their own) are not supported"
            )
        refuse_unknown_positions(name, self.hf_decoder)

    def _create_attention_instances(self, prefix: str) -> None:
        """Make a layer for each attention call and register it on the module that calls."""
        for name, call in self.attention_calls.items():
            module = self.hf_model.get_submodule(name)
            if hasattr(module, VLLM_ATTN_ATTR):
                raise ConfigError(f"{name} has an attribute {VLLM_ATTN_ATTR!r} of its own")
            layer_name = f"{name}.{VLLM_ATTN_ATTR}"
            layer = Attention(
                call.num_heads,
                call.head_size,
                call.head_size**-0.5 if call.scaling is None else call.scaling,
                num_kv_heads=call.num_kv_heads,
                logits_soft_cap=call.softcap,
                per_layer_sliding_window=call.sliding_window,
                prefix=f"{prefix}.{layer_name}" if prefix else layer_name,
                head_size_v=call.head_size_v,
                **self._extra_attention_args(name, call),
            )
            setattr(module, VLLM_ATTN_ATTR, layer)

    def _extra_attention_args(self, name: str, call: AttentionCall) -> dict[str, Any]:
        """What a layer is given beyond the common arguments: sinks, if its module has them.

        Raises:
            ConfigError: the module passes other sinks than those read from its source.
        """
        fuser = self.attention_fusers.get(name)
        sinks = None if fuser is None else fuser.sinks(self.hf_model.get_submodule(name))
        if call.s_aux is not sinks:
            passed = "none" if call.s_aux is None else f"some of shape {list(call.s_aux.shape)}"
            found = "none" if sinks is None else "a parameter of the module"
            raise ConfigError(
                f"{name}: the attention sinks that the model passes ({passed}) are not those found "
                f"in its source ({found}), so they cannot be applied"
            )
        return {} if sinks is None else {"sinks": sinks}

    def init_parameters(self) -> None:
        """Give memory to what is still on the meta device."""
        made: dict[int, nn.Parameter] = {}
        for module in self.modules():
            for name, param in module._parameters.items():
                if param is None or not param.is_meta:
                    continue
                if id(param) not in made:
                    empty = torch.empty(param.shape, dtype=param.dtype)
                    made[id(param)] = nn.Parameter(empty, requires_grad=False)
                    vars(made[id(param)]).update(vars(param))
                module._parameters[name] = made[id(param)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill parameters and buffers; returns the names of those written.

        Raises:
            ModelLoadError: a tensor has no place, or not the shape of its place; a buffer that
                the checkpoint must bring is missing.
        """
        self._ties.tie()
        mapper = WeightsMapper(orig_to_new_stacked=self._stacked)
        known = {*dict(self.named_parameters(remove_duplicate=False)), *self._buffer_names}
        loader = AutoWeightsLoader(self)
        written: set[str] = set()
        for name, tensor, sources in self._conversion.apply(weights):
            if mapper.map_name(name) not in known and self._is_left_out(name):
                for source in sources or (name,):
                    note_ignored(source)
            elif not self._ties.hold(name, tensor):
                written |= loader.load_weights([(name, tensor)], mapper)
        written |= AutoWeightsLoader(self).load_weights(self._ties.settle(written))
        self._ties.retie_equal()
        missing = self._buffer_names - written
        if missing:
            raise ModelLoadError(f"the checkpoint lacks the buffers {', '.join(sorted(missing))}")
        return written

    def _is_left_out(self, name: str) -> bool:
        """Whether a tensor that has no place is one that Transformers leaves out as well."""
        patterns = self.hf_model._keys_to_ignore_on_load_unexpected or ()
        return name.endswith(DERIVED_SUFFIXES) or any(re.search(p, name) for p in patterns)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Show with the weights that positions count and tokens meet as the engine assumes."""
        self.position_offset = find_position_offset(self, self.vllm_config.model_config)
        check_independence(self, self.vllm_config.model_config)
