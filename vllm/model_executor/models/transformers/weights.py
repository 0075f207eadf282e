# SPDX-License-Identifier: Apache-2.0
"""Checkpoint tensors of a Transformers model, under the names and in the form of its parameters.

The model's own conversion mapping says how: a renaming changes the name alone; a converter makes
parameters out of several tensors (experts stacked, projections joined) or the other way round.
Knows nothing of fused projections; those rules come after, by parameter name.
"""

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.accounting import converted_from
from vllm.model_executor.models.transformers.building import build_on_meta


@dataclass(slots=True)
class _Group:
    """Tensors that one converter turns into parameters.

    Attributes:
        sources: name, tensor and the pattern of the converter that fits, as they came.
    """

    converter: WeightConverter
    sources: list[tuple[str, Tensor, str]] = field(default_factory=list)


class CheckpointConversion:
    """From a checkpoint's tensors to those the model's parameters are called after."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Read the mapping of `model`, whose parameters still have Transformers' names."""
        transforms = get_model_conversion_mapping(model)
        self._config, self._base_model_prefix = model.config, model.base_model_prefix
        self._renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
        self._converters = [t for t in transforms if isinstance(t, WeightConverter)]
        # Only its keys are asked for.
        self._names: dict[str, Tensor] = dict(model.state_dict())

    def apply(
        self, weights: Iterable[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor, Sequence[str]]]:
        """Yield (parameter name, tensor, checkpoint names it was made of).

        What needs no conversion is passed on at once; the names of such a tensor are empty, as it
        is the checkpoint's own. Converted tensors come last.

        Raises:
            ModelLoadError: a conversion fails, or tensors it needs are missing.
        """
        groups: dict[str, _Group] = {}
        for source, tensor in weights:
            name, pattern = self._rename(source)
            if pattern is None:
                yield name, tensor, ()
                continue
            converter = next(c for c in self._converters if pattern in c.source_patterns)
            group = groups.setdefault(name, _Group(converter))
            group.sources.append((source, tensor, pattern))
        for name in list(groups):
            yield from self._convert(name, groups.pop(name))

    def _rename(self, source: str) -> tuple[str, str | None]:
        """The parameter's name, and the pattern of the converter that makes it, if one does."""
        base = self._base_model_prefix
        name: str
        pattern: str | None
        name, pattern = rename_source_key(
            source, self._renamings, self._converters, base, self._names
        )
        if name not in self._names and source in self._names:
            name, pattern = rename_source_key(source, [], [], base, self._names)
        return name, pattern

    @functools.cached_property
    def _twin(self) -> PreTrainedModel:
        """The model as Transformers builds it: conversions look up its parameters' shapes."""
        return build_on_meta(self._config, torch.float32)

    def _convert(self, name: str, group: _Group) -> Iterator[tuple[str, Tensor, Sequence[str]]]:
        converter = copy.deepcopy(group.converter)
        # Numbers in names decide the order of a stack: 2 before 10.
        for source, tensor, pattern in sorted(group.sources, key=lambda s: dot_natural_key(s[0])):
            converter.add_tensor(name, source, pattern, _Ready(tensor))
        sources = [source for source, *_ in group.sources]
        try:
            converted = converter.convert(name, model=self._twin, config=self._config)
        except Exception as error:  # whatever the conversion's own code raises
            raise ModelLoadError(
                f"cannot make {name} from {', '.join(sources[:3])} and {max(len(sources) - 3, 0)} "
                f"more: {error}"
            ) from error
        for target, value in converted.items():
            tensor = value[0] if isinstance(value, list) else value
            with converted_from(sources):
                yield target, tensor, sources


class _Ready:
    """A tensor behind the call that conversions read sources through."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __call__(self) -> Tensor:
        return self._tensor
