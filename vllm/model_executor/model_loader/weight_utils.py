# SPDX-License-Identifier: Apache-2.0
"""How checkpoint tensors find parameters: renaming, walking, and the plain loaders.

A parameter may carry `weight_loader(param, loaded_weight, shard_id)`, which knows its place in a
fused or split weight; others are copied whole. Knows neither file formats nor models; whether
all was found is proved in `accounting`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from vllm.distributed.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.accounting import note_ignored

ShardId = str | int
Renaming = Mapping[str, str | None]
T = TypeVar("T")


def default_weight_loader(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    """Copy a whole tensor; a single value fits any parameter of one element.

    Raises:
        ModelLoadError: the shapes differ.
    """
    if param.numel() == 1 and loaded_weight.numel() == 1:
        loaded_weight = loaded_weight.reshape(param.shape)
    if param.shape != loaded_weight.shape:
        raise ModelLoadError(
            f"the checkpoint holds shape {list(loaded_weight.shape)}, the model needs "
            f"{list(param.shape)}"
        )
    param.data.copy_(loaded_weight)


def sharded_weight_loader(shard_axis: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A loader that copies this rank's equal part of the checkpoint tensor along an axis.

    The loader raises `ModelLoadError` where the axis does not divide by the number of ranks, or
    the tensor is not the parameter's shape times that number along it.
    """

    def load(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
        rank, world = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        shape = list(loaded_weight.shape)
        if -len(shape) <= shard_axis < len(shape) and shape[shard_axis] % world:
            raise ModelLoadError(
                f"the checkpoint holds shape {shape}, and dimension {shard_axis} of size "
                f"{shape[shard_axis]} does not divide by tensor_parallel_size={world}"
            )
        size = param.shape[shard_axis]
        whole = list(param.shape)
        whole[shard_axis] = size * world
        if shape != whole:
            raise ModelLoadError(f"the checkpoint holds shape {shape}, the model needs {whole}")
        default_weight_loader(param, loaded_weight.narrow(shard_axis, rank * size, size))

    return load


class MappedName(NamedTuple):
    """Where a checkpoint tensor goes.

    Attributes:
        name: of the parameter.
        shard_id: which part of a fused parameter, or None.
    """

    name: str
    shard_id: ShardId | None = None


@dataclass(frozen=True, slots=True)
class WeightsMapper:
    """From names in the checkpoint to names of parameters.

    The rules run in the order of the fields; within a field in the order given. Of the prefixes,
    and of the suffixes, only the first that fits is used. A target of None drops the tensor.

    Attributes:
        orig_to_new_renaming: functions from name to name or None.
        orig_to_new_regex: pattern, replaced wherever it is found.
        orig_to_new_substr: text, replaced wherever it is found.
        orig_to_new_stacked: text -> (fused text, part of the fused parameter).
        orig_to_new_prefix: start of the name.
        orig_to_new_suffix: end of the name.
    """

    orig_to_new_renaming: Sequence[Callable[[str], str | None]] = ()
    orig_to_new_regex: Mapping[str | re.Pattern[str], str | None] = field(default_factory=dict)
    orig_to_new_substr: Renaming = field(default_factory=dict)
    orig_to_new_stacked: Mapping[str, tuple[str, ShardId]] = field(default_factory=dict)
    orig_to_new_prefix: Renaming = field(default_factory=dict)
    orig_to_new_suffix: Renaming = field(default_factory=dict)

    def __or__(self, other: "WeightsMapper") -> "WeightsMapper":
        """Both sets of rules; where both have a key, `other`'s target holds."""
        return WeightsMapper(
            (*self.orig_to_new_renaming, *other.orig_to_new_renaming),
            {**self.orig_to_new_regex, **other.orig_to_new_regex},
            {**self.orig_to_new_substr, **other.orig_to_new_substr},
            {**self.orig_to_new_stacked, **other.orig_to_new_stacked},
            {**self.orig_to_new_prefix, **other.orig_to_new_prefix},
            {**self.orig_to_new_suffix, **other.orig_to_new_suffix},
        )

    def resolve(self, name: str) -> MappedName | None:
        """Parameter and part for a checkpoint name; None if it is to be dropped."""
        renamed = self._rename(name)
        if renamed is None:
            return None
        shard_id: ShardId | None = None
        for old, (new, part) in self.orig_to_new_stacked.items():
            if old in renamed:
                renamed, shard_id = renamed.replace(old, new, 1), part
                break
        for old, target in self.orig_to_new_prefix.items():
            if renamed.startswith(old):
                if target is None:
                    return None
                renamed = target + renamed.removeprefix(old)
                break
        for old, target in self.orig_to_new_suffix.items():
            if renamed.endswith(old):
                return (
                    None
                    if target is None
                    else MappedName(renamed.removesuffix(old) + target, shard_id)
                )
        return MappedName(renamed, shard_id)

    def _rename(self, name: str) -> str | None:
        for rename in self.orig_to_new_renaming:
            new_name = rename(name)
            if new_name is None:
                return None
            name = new_name
        for pattern, target in self.orig_to_new_regex.items():
            if re.search(pattern, name):
                if target is None:
                    return None
                name = re.sub(pattern, target, name)
        for old, target in self.orig_to_new_substr.items():
            if old in name:
                if target is None:
                    return None
                name = name.replace(old, target)
        return name

    def map_name(self, name: str) -> str | None:
        """The parameter's name; None if the tensor is to be dropped."""
        mapped = self.resolve(name)
        return None if mapped is None else mapped.name

    def apply(self, weights: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        """Rename a stream and leave out what is dropped.

        Upstream's interface to model code, like the two below; not used here yet.

        Raises:
            ValueError: a rule for fused parameters fits; their part needs `resolve`.
        """
        for name, value in weights:
            mapped = self.resolve(name)
            if mapped is None:
                note_ignored(name)
                continue
            if mapped.shard_id is not None:
                raise ValueError(f"{name}: part of {mapped.name}; renaming alone would lose that")
            yield mapped.name, value

    def apply_list(self, names: Iterable[str]) -> list[str]:
        """The new names of those that are kept."""
        return [new for name in names if (new := self.map_name(name)) is not None]

    def apply_dict(self, values: Mapping[str, T]) -> dict[str, T]:
        """The mapping under new names."""
        return {new: v for name, v in values.items() if (new := self.map_name(name)) is not None}


class AutoWeightsLoader:
    """Fills a module's parameters and buffers by name.

    1. The mapper gives name and part; dropped tensors and ignored unknown ones are stated to the
       accounting.
    2. The parameter of that name is written by its own `weight_loader`, else copied whole.
    3. A name without a parameter is a fault, unless it is on the ignore lists.
    """

    def __init__(
        self,
        module: nn.Module,
        ignore_unexpected_prefixes: list[str] | None = None,
        ignore_unexpected_suffixes: list[str] | None = None,
    ) -> None:
        """Prepare.

        Args:
            module: what to fill.
            ignore_unexpected_prefixes: unknown names that start so are left out.
            ignore_unexpected_suffixes: unknown names that end so are left out.
        """
        self._targets: dict[str, torch.Tensor] = {
            # Tied parameters answer to each of their names.
            **dict(module.named_buffers(remove_duplicate=False)),
            **dict(module.named_parameters(remove_duplicate=False)),
        }
        self._prefixes = tuple(ignore_unexpected_prefixes or ())
        self._suffixes = tuple(ignore_unexpected_suffixes or ())

    def load_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        mapper: WeightsMapper | None = None,
    ) -> set[str]:
        """Load all of `weights`; returns the names of parameters written.

        Raises:
            ModelLoadError: a tensor has no place, or not the shape of its place.
        """
        written: set[str] = set()
        for name, tensor in weights:
            mapped = MappedName(name) if mapper is None else mapper.resolve(name)
            if mapped is None:
                note_ignored(name)
            elif mapped.name in self._targets:
                self._load(name, mapped, tensor)
                written.add(mapped.name)
            elif mapped.name.startswith(self._prefixes) or mapped.name.endswith(self._suffixes):
                note_ignored(name)
            else:
                raise ModelLoadError(
                    f"{name} has no place in the model: there is no parameter {mapped.name}"
                )
        return written

    def _load(self, name: str, mapped: MappedName, tensor: torch.Tensor) -> None:
        target = self._targets[mapped.name]
        weight_loader: Callable[..., None] | None = getattr(target, "weight_loader", None)
        part = "" if mapped.shard_id is None else f", part {mapped.shard_id!r}"
        try:
            if mapped.shard_id is None:
                (weight_loader or default_weight_loader)(target, tensor)
            elif weight_loader is not None:
                weight_loader(target, tensor, mapped.shard_id)
            else:
                raise ModelLoadError("this parameter is not fused")
        except ModelLoadError as error:
            raise ModelLoadError(f"{name} (into {mapped.name}{part}): {error}") from error
