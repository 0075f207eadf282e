# SPDX-License-Identifier: Apache-2.0
"""What a model can be split into is decided before any rank starts."""

from typing import Any

import pytest

from tests.conftest import TinyModel
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import ConfigError


def resolve(model: object, **arguments: Any) -> VllmConfig:
    return EngineArgs(str(model), **arguments).create_engine_config()


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [
        ({}, "uni"),
        ({"tensor_parallel_size": 2}, "mp"),
        ({"distributed_executor_backend": "mp"}, "mp"),
        ({"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}, "ray"),
    ],
)
def test_who_starts_the_ranks(
    tiny_model: TinyModel, arguments: dict[str, Any], backend: str
) -> None:
    config = resolve(tiny_model(), **arguments).parallel_config
    assert config.distributed_executor_backend == backend
    assert config.tensor_parallel_size == arguments.get("tensor_parallel_size", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel_size": 3}, "the model's 4 attention heads.*pass 1, 2 or 4"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0: pass the number of ranks"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "'uni' runs one rank.*pass 'mp'",
        ),
        ({"distributed_executor_backend": "dp"}, "pass one of uni, mp, ray, external_launcher"),
    ],
)
def test_what_cannot_be_split_is_refused(
    tiny_model: TinyModel, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(tiny_model(), **arguments)


def test_key_value_heads_must_divide_or_repeat(tiny_model: TinyModel) -> None:
    path = tiny_model(hidden_size=96, num_attention_heads=6, num_key_value_heads=3)
    with pytest.raises(ConfigError, match=r"3 key/value heads can neither.*pass 1 or 3"):
        resolve(path, tensor_parallel_size=2)
    assert resolve(path, tensor_parallel_size=6).parallel_config.tensor_parallel_size == 6


def test_ranks_that_draw_apart_share_a_seed(tiny_model: TinyModel) -> None:
    apart = {"distributed_executor_backend": "external_launcher"}
    assert resolve(tiny_model()).model_config.seed is None
    assert resolve(tiny_model(), **apart).model_config.seed == 0
    assert resolve(tiny_model(), seed=3, **apart).model_config.seed == 3
