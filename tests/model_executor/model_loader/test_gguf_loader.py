# SPDX-License-Identifier: Apache-2.0
"""GGUF: what is read equals what the `gguf` package and Transformers say; damage is refused."""

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from gguf import quants

from tests.model_executor.model_loader.gguf_files import random_blocks, write_gguf
from tests.utils import randomize
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.model_loader.gguf_dequant import dequantize_rows
from vllm.model_executor.model_loader.gguf_loader import gguf_weights_iterator
from vllm.transformers_utils.config import (
    get_config,
    get_eos_token_ids,
    get_generation_config,
)
from vllm.transformers_utils.gguf_config import llama3_rope_factors
from vllm.transformers_utils.gguf_utils import SUPPORTED_TYPES, GGUFFile

QUANTISED = [t for t in SUPPORTED_TYPES if t.name.startswith("Q")]
FIELDS: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(arch: str, **fields: Any) -> Any:
    classes = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    head = {"head_dim": 24} if arch == "qwen3" else {}
    config = getattr(transformers, classes[arch] + "Config")(**(FIELDS | head | fields))
    model = getattr(transformers, classes[arch] + "ForCausalLM")(config).eval()
    randomize(model, seed=3)
    return model


def from_gguf(path: Path) -> Any:
    """A Transformers model from our configuration and our weights."""
    config = get_config(path)
    model = getattr(transformers, config.architectures[0])(config).eval()
    state = {w.name: w.tensor for w in gguf_weights_iterator(path, torch.float32)}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 43)[None]).logits


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [True, False])
def test_model_from_gguf_gives_the_same_logits(arch: str, tie: bool, tmp_path: Path) -> None:
    model = tiny(arch, tie_word_embeddings=tie)
    again = from_gguf(write_gguf(tmp_path / "m.gguf", model, arch=arch))
    assert again.config.tie_word_embeddings is tie
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)


def test_biases_of_llama_are_turned_back_too(tmp_path: Path) -> None:
    model = tiny("llama", attention_bias=True)
    again = from_gguf(write_gguf(tmp_path / "m.gguf", model))
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tensor_type", [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_1])
def test_quantised_model_equals_the_library_s_reading(tensor_type: Q, tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", tiny("qwen3", head_dim=32), arch="qwen3", tensor_type=tensor_type
    )
    reader = gguf.GGUFReader(path)
    expected = [torch.tensor(quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors]
    got = [w.tensor for w in gguf_weights_iterator(path, torch.float32)]
    assert len(got) == len(expected) == 25
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b.view(a.shape))


@pytest.mark.parametrize("tensor_type", QUANTISED)
@pytest.mark.parametrize("shape", [(1, 256), (7, 512), (300, 2048)])
def test_unpacking_equals_the_library_s(tensor_type: Q, shape: tuple[int, int]) -> None:
    rows = random_blocks(shape, tensor_type)
    expected = torch.from_numpy(quants.dequantize(rows, tensor_type))
    got = dequantize_rows(rows, tensor_type, torch.float32)
    assert got.shape == shape
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)
    half = dequantize_rows(rows, tensor_type, torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.equal(half, got.bfloat16())


def test_metadata_equals_the_library_s(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"))
    reader, file = gguf.GGUFReader(path), GGUFFile(path)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert file.metadata == fields
    places = {t.name: (t.data_offset, tuple(t.shape[::-1])) for t in reader.tensors}
    assert {t.name: (t.offset, t.shape) for t in file.tensors.values()} == places


def test_configuration_and_end_tokens(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"))
    config = get_config(path, hf_overrides={"max_position_embeddings": 77})
    for name in set(FIELDS) - {"max_position_embeddings"}:
        assert getattr(config, name) == FIELDS[name], name
    assert config.max_position_embeddings == 77
    assert get_eos_token_ids(config, get_generation_config(path)) == (2,)


def test_window_makes_it_mistral(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), values={"attention.sliding_window": 16})
    config = get_config(path)
    assert (config.architectures, config.sliding_window) == (["MistralForCausalLM"], 16)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recognised(factor: float, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = tiny("llama", head_dim=64, rope_parameters=rope)
    default = 1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = (default / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    ours = llama3_rope_factors(
        500000.0, 64, factor=factor, original_max_position_embeddings=8192, **numbers
    )
    np.testing.assert_allclose(factors, ours, rtol=1e-5)
    path = write_gguf(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": factors})
    assert get_config(path).rope_parameters == rope
    torch.testing.assert_close(logits(from_gguf(path)), logits(model), rtol=0, atol=1e-5)
    bent = factors.copy()
    bent[-3] *= 1.1
    path = write_gguf(tmp_path / "bent.gguf", model, extra={"rope_freqs.weight": bent})
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight is not the scaling of Llama 3"):
        get_config(path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"attention.clamp_kqv": 3.0}, "llama.attention.clamp_kqv"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count=8"),
        ({"expert_count": 4}, "experts"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "longrope"),
    ],
)
def test_what_is_not_applied_is_refused(values: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        get_config(write_gguf(tmp_path / "m.gguf", tiny("llama"), values=values))


def test_linear_scaling_is_read(tmp_path: Path) -> None:
    values = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    config = get_config(write_gguf(tmp_path / "m.gguf", tiny("llama"), values=values))
    assert config.rope_parameters == {
        "rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0,
    }  # fmt: skip


def test_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="'mamba9' is not supported; supported are llama"):
        get_config(path)


def test_unknown_tensor_and_unknown_type_are_refused_by_name(tmp_path: Path) -> None:
    odd = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), extra=odd)
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_sinks\.weight is not known"):
        next(gguf_weights_iterator(path, torch.float32))
    typed = {"blk.0.attn_q.scale": np.zeros(4, np.int16)}
    path = write_gguf(tmp_path / "t.gguf", tiny("llama"), extra=typed)
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q\.scale is stored as I16"):
        GGUFFile(path)


def read_everything(path: Path) -> None:
    get_config(path)
    for _ in gguf_weights_iterator(path, torch.float32):
        pass


def test_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf", tiny("llama")).read_bytes()
    file = GGUFFile(tmp_path / "m.gguf")
    used = max(t.offset + t.num_bytes for t in file.tensors.values())
    header = min(t.offset for t in file.tensors.values())
    rng = random.Random(0)
    ends = {0, 1, 4, 8, 23, 24, header, used - 1}
    ends |= {rng.randrange(header) for _ in range(150)} | {rng.randrange(used) for _ in range(20)}
    cut = tmp_path / "cut.gguf"
    for end in sorted(ends):
        cut.write_bytes(data[:end])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            GGUFFile(cut)


def test_damaged_bytes_give_a_typed_error_or_a_model(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf", tiny("llama", num_hidden_layers=1)).read_bytes()
    header = min(t.offset for t in GGUFFile(tmp_path / "m.gguf").tensors.values())
    rng = random.Random(1)
    bad = tmp_path / "bad.gguf"
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        position = rng.randrange(header)
        if rng.random() < 0.5:
            changed[position] ^= 1 << rng.randrange(8)
        else:
            changed[position : position + 8] = struct.pack("<Q", rng.getrandbits(64))
        bad.write_bytes(changed)
        try:
            read_everything(bad)
        except (ModelLoadError, ConfigError):
            refused += 1
    assert refused > 50


def test_claimed_counts_are_not_believed(tmp_path: Path) -> None:
    huge = struct.pack("<Q", 1 << 62)
    start = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9)
    path = tmp_path / "m.gguf"
    one, none = struct.pack("<Q", 1), struct.pack("<Q", 0)
    string, array = struct.pack("<I", 8), struct.pack("<I", 9)
    bodies = [huge + none, none + huge]
    bodies += [none + one + key + kind for kind in (string + huge, array + one, array + huge)]
    for body in bodies:
        path.write_bytes(start + body)
        with pytest.raises(ModelLoadError, match="not a valid GGUF file"):
            GGUFFile(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + bytes(40), "starts with"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    ],
)
def test_other_files_are_refused_with_the_reason(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=says):
        GGUFFile(path)
