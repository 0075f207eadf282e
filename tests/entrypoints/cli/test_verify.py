# SPDX-License-Identifier: Apache-2.0
"""`vllm verify`: agreement exits with 0, any difference with 1, what cannot be compared with 2."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import nn

from tests.conftest import TinyModel
from tests.model_executor.model_loader.gguf_files import write_gguf
from tests.models.transformers.tiny import make_model
from tests.utils import randomize
from vllm import LLM
from vllm.entrypoints.cli import verify as command
from vllm.entrypoints.cli.parser import VllmArgumentParser
from vllm.entrypoints.verify import prompts as prompts_module
from vllm.entrypoints.verify.compare import compare, row_differences, tolerance_for
from vllm.entrypoints.verify.engine_run import run_engine
from vllm.entrypoints.verify.layers import LayerFacts, attention_layers
from vllm.entrypoints.verify.prompts import (
    built_in_lengths,
    built_in_prompts,
    read_prompts,
    uncrossed_windows,
)
from vllm.entrypoints.verify.reference import ReferenceModel, needed_bytes
from vllm.entrypoints.verify.report import layer_table
from vllm.entrypoints.verify.run import compare_all
from vllm.exceptions import ConfigError
from vllm.model_executor.layers.attention import Attention

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command: exit code, standard output, standard error."""

    def call(*argv: str) -> tuple[int, str, str]:
        parser = VllmArgumentParser("vllm verify", "Test.", command.USAGE)
        command.add_arguments(parser)
        capsys.readouterr()
        code = command.run(parser.parse_args([*argv, "--max-tokens", "4"]))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_model_that_is_right_agrees(run: Run, tiny_model: TinyModel) -> None:
    code, out, _ = run(str(tiny_model("mistral")), "--dtype", "float32")
    assert code == 0
    lines = out.splitlines()
    assert lines[-1].startswith("AGREES: largest logprob difference ")
    assert sum(" TORCH_REF" in line for line in lines) == 3
    # Built-in prompts lie on both sides of the window of 16.
    lengths = [int(word.split("+")[0]) for line in lines for word in line.split() if "+4" in word]
    assert min(lengths) < 16 < max(lengths)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_dtypes_are_judged_by_the_references_own_rounding(
    run: Run, tiny_model: TinyModel, dtype: str
) -> None:
    code, out, _ = run(str(tiny_model("qwen2")), "--dtype", dtype)
    assert code == 0
    assert f"1.5 times what {dtype} alone does" in out.splitlines()[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dropped_window_differs(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """The fault that the command is for: the layer forgets what the model asked for."""
    init = Attention.__init__

    def forgetful(self: Attention, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs | {"per_layer_sliding_window": None})

    monkeypatch.setattr(Attention, "__init__", forgetful)
    prompts = [[7] * 40 + list(range(10, 30))]
    code, out, _ = run(
        str(tiny_model("mistral")), "--dtype", dtype, "--prompts", _file(tiny_model, prompts)
    )
    assert code == 1
    assert out.splitlines()[-1].startswith("DIFFERS: ")


def test_prompts_come_from_a_file(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("the quick brown fox\n\n[9, 8, 7]\n")
    code, out, _ = run(str(tiny_model()), "--dtype", "float32", "--prompts", str(file))
    assert code == 0
    assert " 3+4 " in out and out.count("nowhere") == 2


def test_without_a_tokenizer_prompts_are_random_ids(run: Run, tiny_model: TinyModel) -> None:
    code, _, _ = run(str(tiny_model()), "--dtype", "float32", "--skip-tokenizer-init")
    assert code == 0


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--logprobs-mode", "processed_logprobs"], "only raw_logprobs"),
        (["--load-format", "dummy"], "nothing to compare"),
        (["--prompts", "/no/such/file"], "cannot be read"),
        (["--dtype", "int8"], "dtype"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    run: Run, tiny_model: TinyModel, argv: list[str], reason: str
) -> None:
    code, _, err = run(str(tiny_model()), *argv)
    assert code == 2
    assert err.startswith("vllm verify: error: ") and reason in err


def test_damaged_files_are_an_error(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    code, _, err = run(str(file))
    assert code == 2 and "not a valid GGUF file" in err
    folder = shutil.copytree(tiny_model(), tmp_path / "folder")
    (folder / "model.safetensors").write_bytes(b"\x08")
    code, _, err = run(str(folder))
    assert code == 2 and "model.safetensors is damaged" in err


def test_a_gguf_file_is_read_by_both_sides(run: Run, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=288, max_position_embeddings=256, **sizes, **heads)
    model = LlamaForCausalLM(config)
    randomize(model)
    file = tmp_path / "model.gguf"
    write_gguf(file, model, arch="llama", tensor_type=GGMLQuantizationType.Q8_0)
    code, out, _ = run(str(file), "--dtype", "float32")
    assert code == 0, out
    assert "max diff" in out
    other = tmp_path / "other.gguf"
    randomize(model, seed=1)
    write_gguf(other, model, arch="llama", tensor_type=GGMLQuantizationType.Q8_0)
    result = run_engine({"model": str(other), "dtype": "float32", "max_logprobs": -1}, [[7, 8]], 2)
    comparisons, tolerance = compare_all(result.runs, ReferenceModel(file), "float32")
    assert not tolerance.allows(comparisons)


def test_other_weights_in_the_engine_differ(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One norm weight of one layer, a tenth larger: what a wrong load could do."""
    init = LLM.__init__
    name = "model.layers.1.input_layernorm.weight"

    def spoiled(self: LLM, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.apply_model(lambda model: model.get_parameter(name).data.mul_(1.1))

    monkeypatch.setattr(LLM, "__init__", spoiled)
    code, out, _ = run(str(tiny_model()), "--dtype", "float32")
    assert code == 1
    assert out.splitlines()[-1].startswith("DIFFERS: ")


def test_sinks_windows_caps_and_scales_are_shown(run: Run, tmp_path: Path) -> None:
    """Of models that have them, which only the Transformers backend serves."""
    code, out, _ = run(
        str(make_model(tmp_path / "sinks", "gpt_oss")),
        "--dtype",
        "float32",
        "--skip-tokenizer-init",
    )
    assert code == 0, out
    rows = [line.split() for line in out.splitlines() if " TORCH_REF" in line]
    assert [row[4] for row in rows] == ["8", "-"]
    assert all(float(row[6]) >= -3 and float(row[8]) <= 4 and row[7] == "to" for row in rows)
    code, out, _ = run(
        str(make_model(tmp_path / "caps", "gemma2")), "--dtype", "float32", "--skip-tokenizer-init"
    )
    assert code == 0, out
    rows = [line.split() for line in out.splitlines() if " TORCH_REF" in line]
    assert [row[3:7] for row in rows] == [["0.377964", w, "50", "-"] for w in ("8", "-")]


def test_dropped_sinks_differ(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_model(tmp_path / "sinks", "gpt_oss")
    init = LLM.__init__

    def forgetful(self: LLM, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.apply_model(drop)

    def drop(model: nn.Module) -> None:
        for layer in model.modules():
            if isinstance(layer, Attention):
                assert layer.sinks is not None
                layer.sinks.data.fill_(-1e4)  # exp of it is 0: as if there were none

    monkeypatch.setattr(LLM, "__init__", forgetful)
    code, out, _ = run(str(path), "--dtype", "float32", "--skip-tokenizer-init")
    assert code == 1, out


def test_a_refused_model_is_an_error(run: Run, tmp_path: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    BloomForCausalLM(
        BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=64)
    ).save_pretrained(tmp_path)
    code, _, err = run(str(tmp_path), "--skip-tokenizer-init", "--max-model-len", "64")
    assert code == 2
    assert "BloomForCausalLM" in err and err.count("\n") == 1


def test_a_reference_that_cannot_run_is_an_error(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("no such rope\nbecause of this and that")

    monkeypatch.setattr("transformers.LlamaForCausalLM.forward", broken)
    code, _, err = run(str(tiny_model()), "--dtype", "float32")
    assert code == 2
    assert err.endswith("so there is no reference: TypeError: no such rope\n")


def test_float32_is_judged_by_float64_where_the_reference_itself_rounds(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrower limits stand for tokens at which rounding is larger than it is in a tiny model."""
    monkeypatch.setattr("vllm.entrypoints.verify.compare.FLOAT32_TOLERANCE", 1e-8)
    monkeypatch.setattr("vllm.entrypoints.verify.compare.LARGEST_ALLOWANCE", 8.0)
    monkeypatch.setattr("vllm.entrypoints.verify.compare.MEAN_ALLOWANCE", 8.0)
    code, out, _ = run(str(tiny_model()), "--dtype", "float32")
    assert code == 0, out
    assert out.endswith("times what float32 alone does to the reference)\n")
    forward = nn.Module.__call__

    def only_float32(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if next(self.parameters(), torch.ones(())).dtype == torch.float64:
            raise RuntimeError("expected Float")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr("transformers.LlamaForCausalLM.__call__", only_float32)
    code, out, _ = run(str(tiny_model()), "--dtype", "float32")
    assert code == 1
    assert "note: not compared in float64: " in out and "expected Float" in out


@pytest.mark.parametrize("model_impl", ["vllm", "transformers"])
def test_the_command_runs_from_a_shell(tiny_model: TinyModel, model_impl: str) -> None:
    done = shell(str(tiny_model("qwen3")), "--dtype=float32", f"--model-impl={model_impl}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("AGREES: ")
    assert done.stdout.count(" nowhere") >= 3


def test_errors_reach_the_shell_without_a_trace(tmp_path: Path) -> None:
    done = shell(str(tmp_path / "nothing"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("vllm verify: error: model '") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_default_model_agrees(run: Run, default_model: str) -> None:
    code, out, _ = run("--dtype", "float32")
    assert code == 0, out
    assert out.count(" TORCH_REF") == 30


def test_a_prompt_beyond_the_models_length_is_an_error(
    run: Run, tiny_model: TinyModel, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(json.dumps([9] * 100))
    code, _, err = run(str(tiny_model()), "--max-model-len", "64", "--prompts", str(file))
    assert code == 2 and "64" in err


def test_rows_count_what_only_the_reference_finds_likely() -> None:
    row = {1: -1.0, 2: -2.0, 9: -8.0}  # Two likeliest, and the token itself.
    assert max(row_differences(row, {1: -1.5, 2: -2.0, 9: -8.0}, 2)) == pytest.approx(0.5)
    # Token 5 can be at most as likely as token 2 on the engine's side.
    assert max(row_differences(row, {1: -1.0, 5: -1.75}, 2)) == pytest.approx(0.25)
    assert max(row_differences(row, {1: -1.0, 5: -2.5}, 2)) == 0.0
    assert max(row_differences(row, {1: math.nan}, 2)) == math.inf
    assert max(row_differences({}, {1: -1.0}, 2)) == math.inf


def test_parting_names_position_and_both_tokens() -> None:
    rows = [{1: -0.5, 2: -1.0}, {1: -0.5, 2: -1.0}, {1: -0.7, 2: -0.9}]
    reference = [{1: -0.5, 2: -1.0}, {1: -0.5, 2: -1.0}, {1: -0.9, 2: -0.7}]
    found = compare(rows, reference, [1, 1], num_listed=2)
    assert found.parting is not None
    assert (found.parting.position, found.parting.engine_token) == (2, 1)
    assert found.parting.reference_token == 2
    assert found.parting.gap == pytest.approx(0.2)
    assert (found.prompt_difference, found.worst_position) == (0.0, 4)
    assert found.output_difference == pytest.approx(0.2)


def test_equal_logprobs_do_not_part() -> None:
    rows = [{1: -0.7, 2: -0.7}]
    assert compare(rows, rows, [2], num_listed=2).parting is None


def test_a_mean_beyond_rounding_is_no_agreement() -> None:
    """Every logprob a little off, none much: a lost bias rather than rounding."""
    exact = [{token: -float(token) for token in range(10)}] * 4
    rounded = [{t: v + (0.1 if t == 3 else 0.01) for t, v in row.items()} for row in exact]
    shifted = [{t: v + 0.09 for t, v in row.items()} for row in exact]
    tolerance = tolerance_for("bfloat16", [compare(rounded, exact, [], num_listed=10)])
    assert tolerance.allows([compare(rounded, exact, [], num_listed=10)])
    assert not tolerance.allows([compare(shifted, exact, [], num_listed=10)])


def test_built_in_lengths_cross_block_and_windows() -> None:
    lengths = built_in_lengths(block_size=16, windows=[128, 4096], max_tokens=3000)
    assert {16, 17, 127, 129} <= set(lengths)
    assert max(lengths) <= prompts_module.MAX_BUILT_IN_TOKENS
    prompts = built_in_prompts(None, 50, lengths=lengths)
    assert [len(p) for p in prompts] == lengths
    assert uncrossed_windows([128, 4096], prompts) == [4096]
    assert built_in_lengths(block_size=16, windows=[], max_tokens=1) == [1]


@pytest.mark.parametrize("text", ["", "[]", "[1, true]", '["a"]'])
def test_files_without_prompts_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"prompt|token ids"):
        read_prompts(file)


def test_memory_need_is_four_bytes_a_value(tiny_model: TinyModel) -> None:
    from safetensors.torch import load_file

    path = tiny_model(dtype=torch.bfloat16)
    numel = sum(t.numel() for t in load_file(path / "model.safetensors").values())
    assert needed_bytes(path) == 4 * numel
    with pytest.raises(ConfigError, match="no safetensors"):
        needed_bytes(path / "nothing")


def test_the_layer_table_shows_all_a_layer_applies() -> None:
    facts = LayerFacts("l.0.attn", 8, 2, 64, 32, 0.125, 128, 50.0, (-3.0, 4.0), "TORCH_REF")
    row = layer_table([facts]).splitlines()[1].split("  ")
    cells = [cell.strip() for cell in row if cell.strip()]
    wanted = ["l.0.attn", "8/2", "64/32", "0.125", "128", "50", "-3.000 to 4.000", "TORCH_REF"]
    assert cells == wanted


def test_layers_without_attention_are_not_listed() -> None:
    assert attention_layers(nn.Sequential(nn.Linear(2, 2))) == []


def _file(tiny_model: TinyModel, prompts: list[list[int]]) -> str:
    file = tiny_model().parent / f"prompts-{abs(hash(str(prompts)))}.txt"
    file.write_text("\n".join(map(json.dumps, prompts)))
    return str(file)


def shell(*argv: str) -> "subprocess.CompletedProcess[str]":
    """Run the installed command's module in a process of its own."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "verify", "--max-tokens=2", *argv]
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
