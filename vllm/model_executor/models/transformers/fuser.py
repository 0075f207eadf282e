# SPDX-License-Identifier: Apache-2.0
"""Which fusers fit a module. Classes are examined once; instances are asked again."""

from dataclasses import dataclass

from torch import nn

from vllm.config import VllmConfig
from vllm.model_executor.models.transformers.fusers.attention import AttentionFuser
from vllm.model_executor.models.transformers.fusers.base import BaseFuser, linear_children, trace
from vllm.model_executor.models.transformers.fusers.glu import GLUFuser
from vllm.model_executor.models.transformers.fusers.moe import MoEBlockFuser
from vllm.model_executor.models.transformers.fusers.qkv import QKVFuser
from vllm.model_executor.models.transformers.fusers.rms_norm import RMSNormFuser
from vllm.model_executor.models.transformers.fusers.rotary import RotaryFuser

# In the order of preference; those that change no forward come last and always apply.
FUSERS: tuple[type[BaseFuser], ...] = (
    GLUFuser,
    QKVFuser,
    RotaryFuser,
    RMSNormFuser,
    MoEBlockFuser,
    AttentionFuser,
)


@dataclass(frozen=True, slots=True)
class Fusers:
    """The fusers that match a class."""

    candidates: tuple[BaseFuser, ...]

    def for_instance(self, module: nn.Module, vllm_config: VllmConfig) -> list[BaseFuser]:
        """Those that apply to `module`: at most one that redefines its forward."""
        chosen: list[BaseFuser] = []
        for fuser in self.candidates:
            taken = fuser.redefines_forward and any(f.redefines_forward for f in chosen)
            if not taken and fuser.validate(module, vllm_config):
                chosen.append(fuser)
        return chosen


_cache: dict[tuple[type[nn.Module], tuple[str, ...]], Fusers] = {}


def get_fusers(module: nn.Module) -> Fusers:
    """The fusers that match modules of this class with these children."""
    key = (type(module), tuple(name for name, _ in module.named_children()))
    if key not in _cache:
        graph = trace(module) if len(linear_children(module)) >= 2 else None
        found = (fuser_cls.match(graph, module) for fuser_cls in FUSERS)
        _cache[key] = Fusers(tuple(fuser for fuser in found if fuser is not None))
    return _cache[key]
