# SPDX-License-Identifier: Apache-2.0
"""Linear layers: whole, split by output or by input, and several projections fused into one.

Owns how a checkpoint tensor finds its rows in a (fused, split) weight. The product itself is the
`linear` op; which rows belong to this rank is `sharding`.

Legend of sizes: weight [out, in], bias [out]; fused outputs lie one after the other along `out`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vllm.distributed.communication_op import (
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from vllm.exceptions import ModelLoadError
from vllm.ir.ops import linear
from vllm.model_executor.layers.sharding import (
    Share,
    own_kv_heads,
    own_share,
    refuse_quantization,
    tensor_parallel,
)

ShardId = str | int | None


class LinearBase(nn.Module):
    """y = x W^T + b. Subclasses say which rows and columns of the checkpoint they hold."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        """Allocate this rank's weight, uninitialised.

        Args:
            input_size: columns held here.
            output_size: rows held here.
            bias: whether a bias is added.
            params_dtype: default is torch's default dtype.
            quant_config: None; anything else is refused.
            prefix: name of the layer in the model, for messages.
            return_bias: return `(output, None)` as upstream's layers do, or the output alone.
            disable_tp: hold the whole layer on every rank.
        """
        super().__init__()
        refuse_quantization(quant_config, prefix)
        self.tp_rank, self.tp_size = tensor_parallel(disable_tp)
        self.prefix = prefix
        self.return_bias = return_bias
        self.weight = nn.Parameter(
            torch.empty(output_size, input_size, dtype=params_dtype), requires_grad=False
        )
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        if bias:
            self.bias = nn.Parameter(
                torch.empty(output_size, dtype=params_dtype), requires_grad=False
            )
            self.bias.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        else:
            self.register_parameter("bias", None)

    def forward(self, input_: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, None]:
        output = linear(input_, self.weight, self.bias)
        return (output, None) if self.return_bias else output

    def weight_loader(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: ShardId = None
    ) -> None:
        """Copy a checkpoint tensor into its place in `param` (the weight or the bias).

        Raises:
            ModelLoadError: the tensor has another shape than this layer expects.
        """
        target, source = self.place(param, loaded_weight, shard_id)
        if target.shape != source.shape:
            kind = "bias" if param is self.bias else "weight"
            shard = "" if shard_id is None else f" (part {shard_id!r})"
            raise ModelLoadError(
                f"{self.prefix}.{kind}{shard}: the checkpoint holds shape "
                f"{list(loaded_weight.shape)}, this layer needs {self.expected(param, shard_id)}"
            )
        target.copy_(source)

    def place(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: ShardId
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The part of `param` to write and the part of `loaded_weight` that belongs there.

        Where the shapes cannot match, parts of unequal shape are returned.
        """
        self._no_shard_id(shard_id)
        return param.data, loaded_weight

    def expected(self, param: nn.Parameter, shard_id: ShardId) -> list[int]:
        """Shape of the checkpoint tensor that `place` takes, for messages."""
        del shard_id
        return list(param.shape)

    def _no_shard_id(self, shard_id: ShardId) -> None:
        if shard_id is not None:
            raise ModelLoadError(f"{self.prefix}: holds one projection, got part {shard_id!r}")

    def extra_repr(self) -> str:
        out, in_ = self.weight.shape
        return f"in_features={in_}, out_features={out}, bias={self.bias is not None}"


class ReplicatedLinear(LinearBase):
    """Every rank holds the whole weight and computes the whole product."""


class MergedColumnParallelLinear(LinearBase):
    """Several projections of one input, fused; each is split by output rows."""

    def __init__(
        self, input_size: int, output_sizes: Sequence[int], bias: bool = True, **kwargs: Any
    ) -> None:
        """Fuse projections.

        Args:
            input_size: columns.
            output_sizes: rows of each projection over all ranks; shard ids are 0, 1, ...
            bias: whether each adds a bias.
            **kwargs: as for `LinearBase`.

        Raises:
            ConfigError: the rows of one do not split evenly over the ranks.
        """
        prefix, whole = kwargs.get("prefix", ""), kwargs.get("disable_tp", False)
        self._set_parts(
            {
                i: (size, own_share(size, f"{prefix} rows of part {i}", disable_tp=whole))
                for i, size in enumerate(output_sizes)
            }
        )
        super().__init__(input_size, sum(self.output_partition_sizes), bias, **kwargs)

    def _set_parts(self, parts: "dict[str | int, tuple[int, Share]]") -> None:
        """Note each part's rows in the checkpoint, this rank's share, and where it starts here."""
        # Plain attributes: this runs before nn.Module.__init__, which needs the sizes.
        self._rows = {shard_id: total for shard_id, (total, _) in parts.items()}
        self._shares = {shard_id: share for shard_id, (_, share) in parts.items()}
        self.output_partition_sizes = [share.size for _, share in parts.values()]
        self._starts: dict[str | int, int] = {}
        start = 0
        for shard_id, (_, share) in parts.items():
            self._starts[shard_id] = start
            start += share.size

    def place(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: ShardId
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if shard_id is None or shard_id not in self._rows:
            raise ModelLoadError(
                f"{self.prefix}: part {shard_id!r} is none of {list(self._rows)}; checkpoints "
                "that store the projections fused are not supported"
            )
        share = self._shares[shard_id]
        target = param.data.narrow(0, self._starts[shard_id], share.size)
        if loaded_weight.dim() == 0 or loaded_weight.shape[0] != self._rows[shard_id]:
            return target.new_empty(0), loaded_weight
        return target, loaded_weight.narrow(0, share.start, share.size)

    def expected(self, param: nn.Parameter, shard_id: ShardId) -> list[int]:
        assert shard_id is not None, "place has checked the id"
        return [self._rows[shard_id], *param.shape[1:]]


class ColumnParallelLinear(MergedColumnParallelLinear):
    """One projection, split by output rows."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        gather_output: bool = False,
        **kwargs: Any,
    ) -> None:
        """As `LinearBase`, with `output_size` over all ranks.

        Args:
            input_size: columns.
            output_size: rows over all ranks.
            bias: whether a bias is added.
            gather_output: give every rank the whole output instead of its own part.
            **kwargs: as for `LinearBase`.

        Raises:
            ConfigError: the rows do not split evenly over the ranks.
        """
        self.gather_output = gather_output
        super().__init__(input_size, [output_size], bias, **kwargs)

    def forward(self, input_: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, None]:
        output = linear(input_, self.weight, self.bias)
        if self.gather_output and self.tp_size > 1:
            output = tensor_model_parallel_all_gather(output)
        return (output, None) if self.return_bias else output

    def place(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: ShardId
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._no_shard_id(shard_id)
        return super().place(param, loaded_weight, 0)

    def expected(self, param: nn.Parameter, shard_id: ShardId) -> list[int]:
        return super().expected(param, 0)


class QKVParallelLinear(MergedColumnParallelLinear):
    """Query, key and value projections fused; split by head, shard ids "q", "k" and "v"."""

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        *,
        v_head_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Fuse the three.

        Args:
            hidden_size: columns.
            head_size: size of a query and key head.
            total_num_heads: query heads over all ranks.
            total_num_kv_heads: key/value heads over all ranks; default: as many.
            bias: whether each adds a bias.
            v_head_size: size of a value head; default: `head_size`.
            **kwargs: as for `LinearBase`.

        Raises:
            ConfigError: the heads do not split evenly over the ranks.
        """
        prefix, whole = kwargs.get("prefix", ""), kwargs.get("disable_tp", False)
        total_kv = total_num_heads if total_num_kv_heads is None else total_num_kv_heads
        heads = own_share(total_num_heads, f"{prefix} query heads", disable_tp=whole)
        kv_heads = own_kv_heads(total_kv, f"{prefix} key/value heads", disable_tp=whole)
        self.num_heads, self.num_kv_heads = heads.size, kv_heads.size
        v_size = head_size if v_head_size is None else v_head_size
        parts: dict[str | int, tuple[int, Share]] = {}
        for name, total, share, width in (
            ("q", total_num_heads, heads, head_size),
            ("k", total_kv, kv_heads, head_size),
            ("v", total_kv, kv_heads, v_size),
        ):
            parts[name] = (total * width, Share(share.start * width, share.size * width))
        self._set_parts(parts)
        LinearBase.__init__(self, hidden_size, sum(self.output_partition_sizes), bias, **kwargs)


class RowParallelLinear(LinearBase):
    """Split by input columns; the ranks' outputs are summed."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        input_is_parallel: bool = True,
        reduce_results: bool = True,
        **kwargs: Any,
    ) -> None:
        """As `LinearBase`, with `input_size` over all ranks.

        Args:
            input_size: columns over all ranks.
            output_size: rows.
            bias: whether a bias is added; once, with rank 0's part of the sum.
            input_is_parallel: the input is this rank's part; False: it is whole, and the layer
                takes its part of it.
            reduce_results: sum over the ranks; False leaves the sum to the caller.
            **kwargs: as for `LinearBase`.

        Raises:
            ConfigError: the columns do not split evenly over the ranks.
        """
        prefix, whole = kwargs.get("prefix", ""), kwargs.get("disable_tp", False)
        self.input_is_parallel = input_is_parallel
        self.reduce_results = reduce_results
        self._columns = input_size
        self._share = own_share(input_size, f"{prefix} columns", disable_tp=whole)
        super().__init__(self._share.size, output_size, bias, **kwargs)

    def forward(self, input_: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, None]:
        if self.tp_size == 1:
            output = linear(input_, self.weight, self.bias)
        else:
            output = self._forward_part(input_)
        return (output, None) if self.return_bias else output

    def _forward_part(self, input_: torch.Tensor) -> torch.Tensor:
        if not self.input_is_parallel:
            input_ = input_.narrow(-1, self._share.start, self._share.size)
        output = linear(input_, self.weight, self.bias if self.tp_rank == 0 else None)
        return tensor_model_parallel_all_reduce(output) if self.reduce_results else output

    def place(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: ShardId
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._no_shard_id(shard_id)
        if param.dim() < 2 or loaded_weight.dim() < 2:
            return param.data, loaded_weight
        if loaded_weight.shape[1] != self._columns:
            return param.data.new_empty(0), loaded_weight
        return param.data, loaded_weight.narrow(1, self._share.start, self._share.size)

    def expected(self, param: nn.Parameter, shard_id: ShardId) -> list[int]:
        del shard_id
        return [param.shape[0], self._columns] if param.dim() == 2 else list(param.shape)
