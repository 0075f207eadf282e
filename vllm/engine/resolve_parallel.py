# SPDX-License-Identifier: Apache-2.0
"""The parallel part of the configuration: what a model and a machine can be split into.

What can be known from the model's configuration is refused here, before any rank starts; the
layers check their own sizes when they are built, still before weights are read.
"""

from typing import TYPE_CHECKING, Any

from vllm.config import ParallelConfig
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from vllm.engine.arguments import Arguments


def resolve_parallel_config(args: "Arguments", hf_config: "PretrainedConfig") -> ParallelConfig:
    """The ranks, and who starts them: one in the engine's process, more in their own.

    Raises:
        ConfigError: an argument is wrong, or the model cannot be split so.
    """
    size = args.tensor_parallel_size
    backend = args.distributed_executor_backend or ("uni" if size <= 1 else "mp")
    config = ParallelConfig(
        tensor_parallel_size=size,
        distributed_executor_backend=backend,  # type: ignore[arg-type]
    )
    if size > 1:
        _check_heads(hf_config.get_text_config(), size)
        if backend == "mp":
            _check_devices(size)
    return config


def resolve_seed(args: "Arguments") -> int | None:
    """The engine's seed. Ranks that draw apart must draw alike, so there it is never None."""
    if args.seed is None and args.distributed_executor_backend == "external_launcher":
        return 0
    return args.seed


def _check_heads(text_config: Any, size: int) -> None:
    """Heads that differ between layers are lists here; those the layers check themselves."""
    heads = getattr(text_config, "num_attention_heads", None)
    if isinstance(heads, int) and heads % size:
        raise ConfigError(
            f"tensor_parallel_size={size}: the model's {heads} attention heads do not divide by "
            f"it; pass {_listing(_divisors(heads))}"
        )
    kv_heads = getattr(text_config, "num_key_value_heads", None)
    if isinstance(kv_heads, int) and kv_heads > 0 and kv_heads % size and size % kv_heads:
        raise ConfigError(
            f"tensor_parallel_size={size}: the model's {kv_heads} key/value heads can neither be "
            f"divided by it nor repeated evenly; pass {_listing(_divisors(kv_heads))}"
        )


def _check_devices(size: int) -> None:
    from vllm.platforms import current_platform

    if current_platform().is_cpu():
        return
    import torch

    count = torch.cuda.device_count()
    if count < size:
        raise ConfigError(
            f"tensor_parallel_size={size}, and this machine shows {count} GPUs; pass at most "
            f"{count}, or distributed_executor_backend='ray' for several machines"
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listing(numbers: list[int]) -> str:
    return " or ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
