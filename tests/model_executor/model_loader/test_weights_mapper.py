# SPDX-License-Identifier: Apache-2.0
"""Renaming of checkpoint tensors."""

import pytest

from vllm.model_executor.model_loader.weight_utils import MappedName, WeightsMapper

MAPPER = WeightsMapper(
    orig_to_new_renaming=[lambda name: None if name.startswith("drop") else name],
    orig_to_new_regex={r"layers\.(\d+)": r"blocks.\1", r"\.unused\d$": None},
    orig_to_new_substr={".attention.": ".attn.", ".rotary.": None},
    orig_to_new_stacked={".q_proj": (".qkv", "q"), ".up": (".gate_up", 1)},
    orig_to_new_prefix={"transformer.": "model.", "vision.": None},
    orig_to_new_suffix={".gamma": ".weight", ".num_batches": None},
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformer.layers.3.attention.q_proj.bias", ("model.blocks.3.attn.qkv.bias", "q")),
        ("transformer.mlp.up.weight", ("model.mlp.gate_up.weight", 1)),
        ("transformer.norm.gamma", ("model.norm.weight", None)),
        ("my.transformer.norm", ("my.transformer.norm", None)),
        ("drop.this", None),
        ("a.unused1", None),
        ("a.rotary.b", None),
        ("vision.norm.gamma", None),
        ("bn.num_batches", None),
    ],
)
def test_rules_run_in_order(name: str, expected: tuple[str, str | int | None] | None) -> None:
    assert MAPPER.resolve(name) == (None if expected is None else MappedName(*expected))
    assert MAPPER.map_name(name) == (None if expected is None else expected[0])


def test_streams_lists_and_dicts() -> None:
    values = {"transformer.norm.gamma": 1, "vision.x": 2}
    assert list(MAPPER.apply(values.items())) == [("model.norm.weight", 1)]
    assert MAPPER.apply_list(values) == ["model.norm.weight"]
    assert MAPPER.apply_dict(values) == {"model.norm.weight": 1}
    with pytest.raises(ValueError, match="renaming alone would lose that"):
        list(MAPPER.apply([("a.q_proj.weight", 1)]))


def test_merge_prefers_the_right() -> None:
    merged = MAPPER | WeightsMapper(orig_to_new_prefix={"vision.": "v.", "x.": "y."})
    assert merged.map_name("vision.a") == "v.a"
    assert merged.map_name("x.norm.gamma") == "y.norm.weight"
    assert MAPPER.map_name("vision.a") is None
    assert merged.map_name("drop.x") is None
