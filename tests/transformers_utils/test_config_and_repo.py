# SPDX-License-Identifier: Apache-2.0
"""Finding a model's files and reading its configuration, without network and without its code."""

import json
from pathlib import Path

import pytest

from tests.conftest import TinyModel
from vllm.exceptions import ConfigError
from vllm.transformers_utils.config import (
    get_config,
    get_eos_token_ids,
    get_generation_config,
)
from vllm.transformers_utils.repo_utils import find_weights, resolve_model


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_local_folder_and_its_shards(tiny_model: TinyModel) -> None:
    found = resolve_model(str(tiny_model("llama", sharded=True)))
    assert found.format == "safetensors" and len(found.files) > 1
    assert found.index is not None and all(f.is_file() for f in found.files)


@pytest.mark.parametrize(
    "name", ["./tiny.gguf", "tiny.gguf", "/no/such/folder", "~/nothing", "a/b/c"]
)
def test_path_that_is_not_there_never_reaches_the_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(ConfigError, match="no such file or folder"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["some-org/some-model", "some-org/some-model/model.Q4_0.gguf"])
def test_hub_id_that_is_not_cached_says_so_offline(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local cache, and the hub cannot be reached"):
        resolve_model(name, download_dir=str(tmp_path))


def test_cached_hub_id_needs_no_network(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit / "model.safetensors").write_bytes(b"")
    found = resolve_model("org/tiny", download_dir=str(tmp_path))
    assert found.path.name == commit and [f.name for f in found.files] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(ConfigError, match=f"{name} is in pickle form.*convert it to safe"):
            find_weights(place)


def test_formats_are_chosen_and_conflicts_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \*\.safetensors or \*\.gguf"):
        find_weights(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert find_weights(tmp_path).path == tmp_path / "a.gguf"
    assert find_weights(tmp_path, "dummy").files == ()
    with pytest.raises(ConfigError, match=r"holds no \*\.safetensors file"):
        find_weights(tmp_path, "safetensors")
    with pytest.raises(ConfigError, match="is a GGUF file"):
        find_weights(tmp_path / "a.gguf", "safetensors")
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ConfigError, match=r"several GGUF files; name the one.*a\.gguf, b\.gguf"):
        find_weights(tmp_path)
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "consolidated.safetensors").touch()
    assert [f.name for f in find_weights(tmp_path).files] == ["model.safetensors"]


def write_config(folder: Path, **fields: object) -> Path:
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_overrides_reach_into_mappings(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    write_config(tmp_path, model_type="llama", hidden_size=64, rope_parameters=rope)
    config = get_config(
        tmp_path, hf_overrides={"rope_parameters": {"factor": 4.0}, "vocab_size": 9}
    )
    assert (config.hidden_size, config.vocab_size) == (64, 9)
    assert config.rope_parameters == rope | {"factor": 4.0}


def test_code_of_a_checkpoint_is_not_run_without_consent(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "configuration_x.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import PretrainedConfig\n"
        "class XConfig(PretrainedConfig):\n    model_type = 'x-new'\n"
    )
    auto_map = {"AutoConfig": "configuration_x.XConfig"}
    write_config(tmp_path, model_type="x-new", auto_map=auto_map)
    with pytest.raises(ConfigError, match="code that comes with the checkpoint"):
        get_config(tmp_path)
    assert not marker.exists()
    write_config(tmp_path, model_type="llama", auto_map=auto_map)
    for trust in (False, True):
        assert type(get_config(tmp_path, trust_remote_code=trust)).__name__ == "LlamaConfig"
    assert not marker.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, r"holds no config\.json"),
        ("{", r"config\.json is damaged"),
        ("[1]", "it holds no object"),
        ('{"model_type": "nope"}', "'nope' is not known"),
        ("{}", "model_type=None is not known"),
    ],
)
def test_bad_configurations_are_refused(text: str | None, says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        get_config(tmp_path)


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", eos_token_id=7)
    config = get_config(tmp_path)
    assert get_generation_config(tmp_path) == {}
    assert get_eos_token_ids(config, {}) == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 7], "top_k": 5}')
    generation = get_generation_config(tmp_path)
    assert generation["top_k"] == 5 and get_eos_token_ids(config, generation) == (3, 7)
