# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with MXFP4 experts: read as Transformers reads them, or refused by name and file."""

import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.conftest import TinyModel
from tests.models.transformers.tiny import hf_model, largest_difference
from vllm.config import LoadConfig, ModelConfig
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.model_loader import get_model_loader, mxfp4
from vllm.model_executor.model_loader.accounting import account_load
from vllm.model_executor.model_loader.mxfp4 import (
    dequantize,
    is_mxfp4,
    refuse_other_quantization,
    unpack_mxfp4,
)
from vllm.model_executor.model_loader.weight_source import Weight
from vllm.model_executor.model_loader.weight_utils import AutoWeightsLoader
from vllm.transformers_utils.repo_utils import INDEX_NAME

QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
NAME = "model.layers.1.mlp.experts.down_proj"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
E2M1 = {0: 0.0, 1: 0.5, 2: 1.0, 3: 1.5, 4: 2.0, 5: 3.0, 6: 4.0, 7: 6.0}
TOLERANCE = 1e-4


def packed(experts: int, out: int, groups: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random blocks and scales; values are of order 0.2."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (experts, out, groups, 16), generator=generator)
    scales = torch.randint(122, 125, (experts, out, groups), generator=generator)
    return blocks.to(torch.uint8), scales.to(torch.uint8)


def decoded(blocks: Tensor, scales: Tensor) -> Tensor:
    """The format's definition, a value at a time: [experts, in, out], fp64."""
    experts, out, groups, _ = blocks.shape
    values = torch.empty(experts, groups * 32, out, dtype=torch.float64)
    for e, row, group, i in torch.cartesian_prod(*map(torch.arange, (experts, out, groups, 32))):
        byte = int(blocks[e, row, group, i // 2])
        half = byte >> 4 if i % 2 else byte & 15
        sign = -1.0 if half & 8 else 1.0
        scale = 2.0 ** (int(scales[e, row, group]) - 127)
        values[e, 32 * group + i, row] = sign * E2M1[half & 7] * scale
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_those_of_the_format(dtype: torch.dtype) -> None:
    blocks, scales = packed(3, 5, 2)
    got = dequantize(blocks, scales, dtype)
    assert got.shape == (3, 64, 5) and got.dtype == dtype and got.is_contiguous()
    assert torch.equal(got, decoded(blocks, scales).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_and_every_scale_that_fits_is_exact(dtype: torch.dtype) -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 253, 1, 1)
    scales = torch.arange(253, dtype=torch.uint8).view(1, 253, 1).repeat(1, 1, 16)
    got = dequantize(blocks, scales, dtype)
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).view(253, 512).T.int()
    magnitudes = torch.tensor(list(E2M1.values()), dtype=torch.float64)[halves & 7]
    expected = torch.where(halves >= 8, -magnitudes, magnitudes)
    expected = expected * 2.0 ** (torch.arange(253, dtype=torch.float64) - 127)
    assert torch.equal(got[0].double(), expected)
    assert torch.equal(got[0].signbit(), halves >= 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [1, 150, 1 << 19])
def test_values_are_those_of_transformers(
    dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    monkeypatch.setattr(mxfp4, "_PIECE_VALUES", piece)
    blocks, scales = packed(4, 7, 2)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    assert torch.equal(dequantize(blocks, scales, dtype), expected)


def test_pairs_are_joined_across_files_and_the_rest_is_passed_on() -> None:
    blocks, scales = packed(2, 3, 1)
    plain = Weight(f"{NAME}_bias", torch.ones(2, 3), "a")
    source = [
        Weight(f"{NAME}_scales", scales, "a"),
        plain,
        Weight("x.mlp.experts.gate_up_proj_blocks", blocks, "a"),
        Weight("x.mlp.experts.gate_up_proj_scales", scales, "a"),
        Weight(f"{NAME}_blocks", blocks, "b"),
    ]
    got = list(unpack_mxfp4(source, torch.bfloat16))
    assert got[0] is plain
    joined = [(w.name, w.file) for w in got[1:]]
    assert joined == [("x.mlp.experts.gate_up_proj", "a"), (NAME, "b, a")]
    expected = decoded(blocks, scales).bfloat16()
    assert all(torch.equal(w.tensor, expected) for w in got[1:])


def test_no_unpacked_tensor_lives_while_the_next_half_is_read() -> None:
    blocks, scales = packed(2, 3, 1)
    made: list[weakref.ref[Tensor]] = []

    def source() -> Iterator[Weight]:
        for layer in range(3):
            for half, tensor in (("blocks", blocks), ("scales", scales)):
                assert all(ref() is None for ref in made)
                yield Weight(f"l.{layer}.mlp.experts.down_proj_{half}", tensor, "a")

    model = nn.Module()
    for layer in range(3):
        model.register_parameter(f"p{layer}", nn.Parameter(torch.empty(2, 32, 3)))

    def load(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        iterator = iter(weights)
        for layer in range(3):
            name, tensor = next(iterator)
            made.append(weakref.ref(tensor))
            assert name == f"l.{layer}.mlp.experts.down_proj"
            model.get_parameter(f"p{layer}").copy_(tensor)
            del tensor
        assert next(iterator, None) is None
        return set()

    account_load(model, unpack_mxfp4(source(), torch.float32), load)
    assert len(made) == 3


Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def with_scale(value: int) -> Change:
    """Sets one scale."""

    def change(blocks: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        scales[1, 2, 0] = value
        return blocks, scales

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b, s: (b.to(torch.int8), s), r"_blocks \(.*from b\.st\).*int8, expected .*uint8"),
        (lambda b, s: (b, s.float()), r"_scales \(.*from s\.st\).*float32, expected torch\.uint8"),
        (lambda b, s: (b.flatten(2), s), r"_blocks \(shape \[2, 3, 16\].* groups, 16\]"),
        (lambda b, s: (b, s[0]), r"_scales \(shape \[3, 1\].*expected shape \[experts, out, gr"),
        (lambda b, s: (b[:0], s[:0]), r"_blocks \(shape \[0, 3, 1, 16\].*none of them 0"),
        (lambda b, s: (b[..., :15], s), r"_blocks .* 15 bytes, expected 16"),
        (lambda b, s: (b, s[:, :2]), r"_scales \(shape \[2, 2, 1\].*expected shape \[2, 3, 1\]"),
        (with_scale(255), r"_scales .*1 scales are 255.*first at \[1, 2, 0\]; expected 0 to 254"),
        (with_scale(254), r"_scales .*beyond the range of torch\.float32"),
    ],
)
def test_a_half_that_is_not_as_the_format_says_is_named(change: Change, says: str) -> None:
    blocks, scales = change(*packed(2, 3, 1))
    source = [Weight(f"{NAME}_blocks", blocks, "b.st"), Weight(f"{NAME}_scales", scales, "s.st")]
    with pytest.raises(ModelLoadError, match=says) as caught:
        list(unpack_mxfp4(source, torch.float32))
    assert NAME in str(caught.value)


def test_values_beyond_fp16_are_refused_and_those_within_are_not() -> None:
    blocks, scales = torch.full((1, 1, 1, 16), 0x55), torch.full((1, 1, 1), 127 + 14)
    blocks, scales = blocks.to(torch.uint8), scales.to(torch.uint8)
    for byte, is_within in ((0x55, True), (0x56, False)):
        blocks[0, 0, 0, 3] = byte  # 3 and 3, then 4 and 3, times 2 ** 14
        source = [Weight(f"{NAME}_blocks", blocks, "b"), Weight(f"{NAME}_scales", scales, "s")]
        if is_within:
            [weight] = unpack_mxfp4(source, torch.float16)
            assert weight.tensor.eq(3 * 2.0**14).all()
        else:
            with pytest.raises(
                ModelLoadError, match=r"1 unpacked values.*float16; load .*bfloat16"
            ):
                list(unpack_mxfp4(source, torch.float16))


@pytest.mark.parametrize("half", ["blocks", "scales"])
def test_a_half_alone_or_twice_is_named(half: str) -> None:
    tensors = dict(zip(("blocks", "scales"), packed(2, 3, 1), strict=True))
    other = "scales" if half == "blocks" else "blocks"
    alone = Weight(f"{NAME}_{half}", tensors[half], "a.st")
    says = rf"_{half} \(shape .*from a\.st\): the checkpoint lacks .*down_proj_{other}"
    with pytest.raises(ModelLoadError, match=says):
        list(unpack_mxfp4([alone], torch.float32))
    with pytest.raises(ModelLoadError, match=rf"_{half} is .* twice: in a\.st and in b\.st"):
        list(unpack_mxfp4([alone, alone._replace(file="b.st")], torch.float32))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"quantization_config": {"quant_method": "awq"}},
            r"'awq' of a gpt_oss .*'mxfp4' is taken",
        ),
        ({"compression_config": {"quant_method": "mxfp4"}}, r"compression_config: .*not supported"),
        ({"quantization_config": {"bits": 4}}, r"method None .*not supported"),
        ({"quantization_config": object()}, r"method None .*not supported"),
        ({"quantization_config": QUANTIZATION, "model_type": "mixtral"}, r"'mxfp4' of a mixtral"),
        (
            {"quantization_config": {**QUANTIZATION, "group_size": 16, "codebook": None}},
            r"group_size is not known .*known are dequantize, modules_to_not_convert, quant_method",
        ),
    ],
)
def test_other_quantization_is_refused(fields: dict[str, Any], says: str) -> None:
    config: Any = SimpleNamespace(**({"model_type": "gpt_oss"} | fields))
    with pytest.raises(ConfigError, match=says):
        refuse_other_quantization(config)


def test_packed_and_plain_checkpoints_are_taken() -> None:
    for quantization in (None, QUANTIZATION, QUANTIZATION | {"dequantize": False}):
        config: Any = SimpleNamespace(model_type="gpt_oss", quantization_config=quantization)
        refuse_other_quantization(config)
        assert is_mxfp4(config) is (quantization is not None)
    plain: Any = SimpleNamespace(model_type="llama")
    refuse_other_quantization(plain)
    assert not is_mxfp4(plain)


def write_packed(path: Path, *, sharded: bool = False) -> Path:
    """A tiny GPT-OSS checkpoint as published: experts packed, all else bf16.

    Args:
        path: folder, created.
        sharded: put every other tensor into a second file, so that halves part.
    """
    model = hf_model("gpt_oss", num_hidden_layers=3).bfloat16()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    for seed, name in enumerate([n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]):
        experts, columns, out = tensors.pop(name).shape
        halves = packed(experts, out, columns // 32, seed=seed)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = halves
    model.config.architectures = ["GptOssForCausalLM"]
    model.config.quantization_config = QUANTIZATION
    path.mkdir()
    model.config.save_pretrained(path)
    names = sorted(tensors)
    if not sharded:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path
    homes = {name: SHARDS[i % 2] for i, name in enumerate(names)}
    for file in SHARDS:
        part = {n: tensors[n] for n in names if homes[n] == file}
        save_file(part, path / file, metadata={"format": "pt"})
    (path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    apart = [n for n in names if n.endswith("_blocks") and homes[n] != homes[n[:-6] + "scales"]]
    assert apart, "no pair lies in two files"
    return path


def read_by_transformers(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """What Transformers makes of the same files, in eager attention."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    return AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
        local_files_only=True,
    ).eval()


def load(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A Transformers model filled by the engine's loader."""
    from transformers import AutoConfig, GptOssForCausalLM

    config = AutoConfig.from_pretrained(path)
    model = GptOssForCausalLM(config).to(dtype)
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(float("nan"))
    model.load_weights = AutoWeightsLoader(model).load_weights
    model_config = ModelConfig(
        model=str(path), path=path, served_model_name=("m",), tokenizer=str(path),
        hf_config=config, architecture="A", dtype=dtype, max_model_len=8,
        vocab_size=config.vocab_size,
    )  # fmt: skip
    get_model_loader(LoadConfig()).load_weights(model, model_config)
    return model


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    """Both hold the same parameters, to the bit."""
    for (name, ours), (other, theirs) in zip(
        a.named_parameters(), b.named_parameters(), strict=True
    ):
        assert name == other and ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_packed_checkpoint_loads_as_transformers_loads_it(
    sharded: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = write_packed(tmp_path / "m", sharded=sharded)
    assert_equal(load(path, dtype), read_by_transformers(path, dtype))


def drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    """Takes one tensor away."""
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            drop(f"{NAME}_scales"),
            rf"{NAME}_blocks .*from model\.safetensors\).*lacks {NAME}_scales",
        ),
        (
            drop(f"{NAME}_blocks"),
            rf"{NAME}_scales .*from model\.safetensors\).*lacks {NAME}_blocks",
        ),
        (
            lambda t: (t.pop(f"{NAME}_blocks"), t.pop(f"{NAME}_scales")),
            rf"{NAME} is not in the checkpoint \(expected shape \[4, 96, 64\]",
        ),
        (
            lambda t: t.update({NAME: torch.zeros(4, 96, 64)}),
            rf"{NAME} is in the checkpoint twice: in model\.safe.* and in model\.safe",
        ),
        (
            lambda t: t.update(
                {f"{NAME}_blocks": packed(4, 64, 2)[0], f"{NAME}_scales": packed(4, 64, 2)[1]}
            ),
            rf"{NAME} \(shape \[4, 64, 64\], from model\.safe.*needs \[4, 96, 64\]",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj_blocks": torch.zeros(4)}),
            r"q_proj_blocks has no place",
        ),
    ],
)
def test_what_is_missing_or_too_much_stops_the_load(
    change: Callable[[dict[str, Tensor]], object], says: str, tmp_path: Path
) -> None:
    file = write_packed(tmp_path / "m") / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=says):
        load(tmp_path / "m")


@pytest.fixture
def serve() -> Iterator[Callable[..., Any]]:
    """Starts an engine over a folder."""
    from vllm import LLM

    engines: list[Any] = []

    def start(path: Path, dtype: str = "float32", **options: Any) -> Any:
        fixed = {"skip_tokenizer_init": True, "max_model_len": 64, "max_num_batched_tokens": 16}
        options = {"kv_cache_memory_bytes": 1 << 22, "model_impl": "transformers"} | options
        engines.append(LLM(model=str(path), dtype=dtype, **fixed, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_holds_the_unpacked_experts(
    dtype: str, tmp_path: Path, serve: Callable[..., Any]
) -> None:
    path = write_packed(tmp_path / "m", sharded=True)
    [model] = serve(path, dtype).apply_model(lambda model: model)
    expected = read_by_transformers(path, getattr(torch, dtype))
    for layer in range(3):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{layer}.mlp.experts.{part}"
            ours, theirs = model.get_parameter(name), expected.get_parameter(name)
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name


def test_logprobs_are_those_of_transformers(tmp_path: Path, serve: Callable[..., Any]) -> None:
    path = write_packed(tmp_path / "m", sharded=True)
    assert largest_difference(serve(path), read_by_transformers(path)) < TOLERANCE


def test_a_model_that_does_not_ask_for_it_is_refused(
    tiny_model: TinyModel, serve: Callable[..., Any]
) -> None:
    for model_impl in ("vllm", "transformers"):
        with pytest.raises(ConfigError, match=r"quantization method 'mxfp4'"):
            serve(
                tiny_model("llama"),
                model_impl=model_impl,
                hf_overrides={"quantization_config": QUANTIZATION},
            )
