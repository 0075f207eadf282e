# SPDX-License-Identifier: Apache-2.0
"""Safetensors: every fault of a sharded checkpoint is named with its file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.model_loader.safetensors_source import safetensors_weights_iterator
from vllm.transformers_utils.repo_utils import INDEX_NAME, find_weights

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, 3).bfloat16()}, tmp_path / ONE)
    save_file({"c": torch.full((4,), 7)}, tmp_path / TWO)
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def read(folder: Path) -> dict[str, tuple[torch.Tensor, str]]:
    found = find_weights(folder)
    return {
        w.name: (w.tensor, w.file) for w in safetensors_weights_iterator(found.files, found.index)
    }


def test_all_shards_are_read(sharded: Path) -> None:
    got = read(sharded)
    assert {name: file for name, (_, file) in got.items()} == {"a": ONE, "b": ONE, "c": TWO}
    assert torch.equal(got["a"][0], torch.arange(6.0)) and got["b"][0].dtype == torch.bfloat16


def test_without_index_all_files_are_read(sharded: Path) -> None:
    (sharded / INDEX_NAME).unlink()
    assert set(read(sharded)) == {"a", "b", "c"}
    save_file({"c": torch.zeros(1)}, sharded / "extra.safetensors")
    with pytest.raises(ModelLoadError, match=rf"c is in the checkpoint twice.*extra.*{TWO}"):
        read(sharded)


def test_file_outside_the_index_is_not_read(sharded: Path) -> None:
    save_file({"z": torch.zeros(1)}, sharded / "other.safetensors")
    assert set(read(sharded)) == {"a", "b", "c"}


def test_missing_file_is_named_before_anything_is_read(sharded: Path) -> None:
    (sharded / TWO).unlink()
    found = find_weights(sharded)
    with pytest.raises(ModelLoadError, match=f"{TWO} is missing"):
        next(iter(safetensors_weights_iterator(found.files, found.index)))


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": ONE, "b": ONE, "c": TWO, "d": TWO}, f"d should be in {TWO}, but is not"),
        ({"a": ONE, "b": TWO, "c": TWO}, f"b should be in {TWO}, but is not"),
        ({"a": ONE, "c": TWO}, f"{ONE}: b is not in"),
        ({"a": "../x.safetensors"}, "no file's name|missing"),
        ({"a": "model.bin"}, "no safetensors file|missing"),
    ],
)
def test_index_that_differs_is_refused(sharded: Path, weight_map: object, says: str) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(ModelLoadError, match=says):
        read(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_damaged_index_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX_NAME).write_text(text)
    with pytest.raises(ConfigError, match=r"index\.json is damaged"):
        find_weights(sharded)


def test_truncated_and_garbage_files_are_named(sharded: Path) -> None:
    data = (sharded / ONE).read_bytes()
    for end in (0, 7, 8, 40, len(data) - 1):
        (sharded / ONE).write_bytes(data[:end])
        with pytest.raises(ModelLoadError, match=f"{ONE} is damaged or incomplete"):
            read(sharded)
    (sharded / ONE).write_bytes(data + b"x")
    with pytest.raises(ModelLoadError, match=f"{ONE} is damaged"):
        read(sharded)


def test_single_file_beside_an_index_is_refused(sharded: Path) -> None:
    save_file({"a": torch.zeros(1)}, sharded / "model.safetensors")
    with pytest.raises(ConfigError, match="holds both"):
        find_weights(sharded)
