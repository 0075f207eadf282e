# SPDX-License-Identifier: Apache-2.0
"""The page of model types says what is so: a part of the sweep, and the page as a whole.

`make sweep` runs all types and writes the page anew.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.transformers.sweep import report
from tests.models.transformers.sweep.classify import Result, classify
from tests.models.transformers.sweep.pool import all_model_types, run_all
from vllm.model_executor.layers.attention import Attention

# One type for each thing that a model may ask of its attention, its head or its experts ...
RIGHT = (
    "cohere2",  # logit scale, layers without rotation, windows
    "deepseek_v3",  # latent attention: values narrower than keys; grouped routing
    "falcon",  # packed QKV with one key head
    "gemma2",  # soft caps, windows, another scale
    "gemma3_text",  # rotation per kind of layer
    "gemma4_text",  # head sizes and scales per layer, keys that serve as values
    "gpt2",  # learned positions, transposed weights
    "gpt_bigcode",  # one key head, learned positions
    "gpt_oss",  # attention sinks
    "granite",  # four multipliers
    "granite_swa",  # sinks, windows and multipliers
    "longcat_flash",  # two attentions a layer, experts that do nothing
    "mimo_v2_flash",  # sinks in some layers only, head counts per layer
    "mixtral",  # routed experts
    "opt",  # positions that count from 2
    "roberta",  # positions that count from beyond the padding token's id
)
# ... and one for each reason to refuse.
REFUSED = {
    "bart": "counts positions by itself",
    "bloom": "0 attend through Transformers' attention interface",
    "deepseek_v32": "passes indices=",
    "diffllama": "attends twice",
    "gemma3": "several kinds of input",
    "llama4_text": "'chunked_attention'",
    "mamba": "keep a state between tokens",
    "qwen3_next": "keep a state between tokens",
}

pytestmark = pytest.mark.filterwarnings("ignore")  # of Transformers, about its own code


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models are so tiny that a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def page() -> tuple[str, dict[str, str]]:
    return report.read_page(report.PAGE.read_text(encoding="utf-8"))


def sweep(model_type: str, cache_dir: Path) -> Result:
    return classify(model_type, cache_dir, "transformers", lambda stage: None)


def check_page(result: Result, page: tuple[str, dict[str, str]]) -> None:
    """Other versions of Transformers have other types and other code: the page is of one."""
    version, rows = page
    if version == transformers.__version__:
        assert rows[result.model_type] == report.row(result), "run `make sweep`"


@pytest.mark.parametrize("model_type", RIGHT)
def test_types_that_are_right(
    model_type: str, cache_dir: Path, page: tuple[str, dict[str, str]]
) -> None:
    result = sweep(model_type, cache_dir)
    assert result.outcome == "right", result
    check_page(result, page)


@pytest.mark.parametrize("model_type", REFUSED)
def test_types_that_are_refused_for_their_reason(
    model_type: str, cache_dir: Path, page: tuple[str, dict[str, str]]
) -> None:
    result = sweep(model_type, cache_dir)
    assert result.outcome == "refused", result
    assert REFUSED[model_type] in result.reason
    check_page(result, page)


def test_a_type_that_transformers_cannot_run_is_judged_by_its_configuration(
    cache_dir: Path, page: tuple[str, dict[str, str]]
) -> None:
    result = sweep("emu3", cache_dir)
    assert (result.outcome, result.architecture) == ("refused", "Emu3ForCausalLM")
    check_page(result, page)


@pytest.mark.parametrize(
    ("model_type", "dropped"),
    [
        ("gpt_oss", {"sinks": None}),
        ("gpt_oss", {"per_layer_sliding_window": None}),
        ("gemma2", {"logits_soft_cap": None}),
    ],
)
def test_what_a_layer_drops_is_found(
    model_type: str,
    dropped: dict[str, None],
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows show in longer prompts only; sinks and caps would also stop the model's own call."""
    init = Attention.__init__
    module = "vllm.model_executor.models.transformers.attention_interface"
    monkeypatch.setattr(f"{module}.check_sinks", lambda layer, sinks: None)

    def forgetful(self: Attention, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **(kwargs | dropped))

    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(module, *args, **kwargs | {"softcap": module.attn.logits_soft_cap})

    forward = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["vllm"]
    monkeypatch.setattr(Attention, "__init__", forgetful)
    monkeypatch.setitem(
        transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._local_mapping, "vllm", run
    )
    result = sweep(model_type, cache_dir)
    assert result.outcome == "wrong", result
    assert result.reason.startswith("logprobs differ by ")


def test_a_process_that_dies_or_hangs_is_a_result(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the pool itself, whose children run what they inherit."""
    script = {"llama": "import os; os._exit(7)", "gpt2": "import time; time.sleep(60)"}
    monkeypatch.setattr(
        "tests.models.transformers.sweep.pool.classify",
        lambda model_type, *_: exec(script[model_type]),
    )
    found = {
        result.model_type: result
        for result, _ in run_all(
            list(script), cache_dir, model_impl="transformers", num_jobs=1, limit_s=2.0
        )
    }
    assert found["llama"].reason == "process ended with 7 (stage: build)"
    assert found["gpt2"].reason == "took over 2 s (stage: build)"


def test_the_page_lists_every_type(page: tuple[str, dict[str, str]]) -> None:
    version, rows = page
    if version != transformers.__version__:
        pytest.skip(f"the page is of Transformers {version}; `make sweep` writes one of another")
    assert sorted(rows) == all_model_types()


def test_the_page_names_no_fault(page: tuple[str, dict[str, str]]) -> None:
    cells = {name: row.split(" | ") for name, row in page[1].items()}
    outcomes = [row[2] for row in cells.values()]
    assert {*outcomes} <= {"right", "refused", "crash"}
    assert outcomes.count("right") >= 100
    reasons = {name: row[3].removesuffix(" |") for name, row in cells.items() if row[2] != "right"}
    assert all(reasons.values())
    assert not any("after start-up" in reason for reason in reasons.values())


def test_pages_are_read_as_they_are_written() -> None:
    results = [
        Result("a-b", "AForCausalLM", "right", difference=1e-6),
        Result("b_c", "", "refused", "a | b <c>"),
    ]
    version, rows = report.read_page(report.page(results))
    assert version == transformers.__version__
    assert rows == {"a-b": report.row(results[0]), "b_c": report.row(results[1])}
    with pytest.raises(ValueError, match="twice"):
        report.read_page(report.page([results[0]] * 2))
