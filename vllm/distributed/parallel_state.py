# SPDX-License-Identifier: Apache-2.0
"""The process groups: the world, and within it the ranks that split each layer.

Owns torch.distributed, which is touched only where there are several ranks. One rank is the
state before any call here, and costs one comparison per question.

    world of 4, tensor_parallel_size 2:   ranks 0 1 | 2 3   two groups, each with a model of its own
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """Some ranks of the world, and their collectives. Every rank must call, in the same order.

    Attributes:
        ranks: their numbers in the world.
        rank_in_group: this process's place among them.
        device_group: torch's group, for tensors on `device`.
        device: where tensors must lie.
    """

    ranks: tuple[int, ...]
    rank_in_group: int
    device_group: Any
    device: "torch.device"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def all_reduce(self, input_: "torch.Tensor") -> "torch.Tensor":
        """The sum over the ranks, bit for bit the same on each.

        Args:
            input_: of the same shape on each rank; overwritten if contiguous. On the meta device
                there is nothing to exchange: shapes alone are computed, here and below.
        """
        import torch.distributed as dist

        if input_.is_meta:
            return input_
        output = input_.contiguous()
        dist.all_reduce(output, group=self.device_group)
        return output

    def all_gather(self, input_: "torch.Tensor", dim: int = -1) -> "torch.Tensor":
        """The ranks' tensors joined along `dim`, in the order of ranks.

        Args:
            input_: of the same shape on each rank.
        """
        import torch
        import torch.distributed as dist

        dim = dim % input_.dim()
        if input_.is_meta:
            return torch.cat([input_] * self.world_size, dim)
        gathered = torch.empty(
            (self.world_size, *input_.shape), dtype=input_.dtype, device=input_.device
        )
        dist.all_gather(list(gathered.unbind(0)), input_.contiguous(), group=self.device_group)
        shape = list(input_.shape)
        shape[dim] *= self.world_size
        return gathered.movedim(0, dim).reshape(shape)

    def all_gather_ints(self, value: int) -> list[int]:
        """Each rank's `value`, in the order of ranks."""
        import torch

        own = torch.tensor([value], dtype=torch.int64, device=self.device)
        return [int(v) for v in self.all_gather(own).tolist()]


_tp: GroupCoordinator | None = None
_owns_world = False


def init_distributed_environment(
    world_size: int, rank: int, distributed_init_method: str, backend: str
) -> None:
    """Join the world; where the caller's program has joined one already, that one is used.

    Args:
        world_size: number of processes.
        rank: this one's number.
        distributed_init_method: where they meet: "env://", "tcp://HOST:PORT" or "file://PATH".
        backend: "gloo" for tensors on the CPU, "nccl" on GPUs (RCCL under ROCm).

    Raises:
        RuntimeError: the world that is there has another size or gives this process another rank.
    """
    global _owns_world
    import torch.distributed as dist

    if dist.is_initialized():
        found = (dist.get_world_size(), dist.get_rank())
        if found != (world_size, rank):
            raise RuntimeError(
                f"torch.distributed is initialised with (world size, rank) {found}, expected "
                f"{(world_size, rank)}"
            )
        return
    dist.init_process_group(
        backend,
        init_method=distributed_init_method,
        world_size=world_size,
        rank=rank,
        timeout=_TIMEOUT,
    )
    _owns_world = True


def initialize_model_parallel(
    tensor_model_parallel_size: int, backend: str, device: "torch.device"
) -> None:
    """Cut the world into groups of consecutive ranks; every rank of the world must call.

    Raises:
        RuntimeError: there are groups already, or the world does not divide into such groups.
    """
    global _tp
    import torch.distributed as dist

    if _tp is not None:
        raise RuntimeError("the tensor-parallel group exists already: one engine per process")
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if world_size % tensor_model_parallel_size:
        raise RuntimeError(
            f"a world of {world_size} does not divide into groups of {tensor_model_parallel_size}"
        )
    for first in range(0, world_size, tensor_model_parallel_size):
        ranks = tuple(range(first, first + tensor_model_parallel_size))
        # Creating a group is itself collective over the world, members or not.
        group = dist.new_group(list(ranks), backend=backend, timeout=_TIMEOUT)
        if rank in ranks:
            _tp = GroupCoordinator(ranks, rank - first, group, device)


def model_parallel_is_initialized() -> bool:
    """Whether several ranks split the layers."""
    return _tp is not None


def get_tp_group() -> GroupCoordinator:
    """The ranks that split the layers; there is no such group where one rank holds them whole."""
    assert _tp is not None, "one rank holds the whole model: ask for the world size first"
    return _tp


def get_tensor_model_parallel_rank() -> int:
    """Index of this process among those that split the layers."""
    return 0 if _tp is None else _tp.rank_in_group


def get_tensor_model_parallel_world_size() -> int:
    """Number of processes that split the layers."""
    return 1 if _tp is None else len(_tp.ranks)


def tensor_model_parallel_all_reduce(input_: "torch.Tensor") -> "torch.Tensor":
    """The sum over the ranks, the same on each.

    Args:
        input_: this rank's part; overwritten if contiguous.
    """
    return input_ if _tp is None else _tp.all_reduce(input_)


def tensor_model_parallel_all_gather(input_: "torch.Tensor", dim: int = -1) -> "torch.Tensor":
    """The ranks' tensors joined along `dim`, in the order of ranks, on every rank."""
    return input_ if _tp is None else _tp.all_gather(input_, dim)


def destroy_model_parallel() -> None:
    """Leave the tensor-parallel group; idempotent."""
    global _tp
    if _tp is None:
        return
    import torch.distributed as dist

    group, _tp = _tp, None
    dist.destroy_process_group(group.device_group)


def destroy_distributed_environment() -> None:
    """Leave the world, if it was joined here; idempotent."""
    global _owns_world
    destroy_model_parallel()
    if _owns_world:
        import torch.distributed as dist

        _owns_world = False
        dist.destroy_process_group()
