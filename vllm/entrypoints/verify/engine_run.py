# SPDX-License-Identifier: Apache-2.0
"""The engine's half: runs prompts through the public `LLM` and keeps what it says.

When it returns, the engine and its weights are gone.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.verify.layers import LayerFacts, attention_layers
from vllm.entrypoints.verify.prompts import built_in_lengths, built_in_prompts
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.outputs import RequestOutput

logger = init_logger(__name__)

NUM_LOGPROBS = 20

Row = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One prompt's run.

    Attributes:
        prompt: token ids.
        output: token ids that the engine chose, greedily.
        rows: logprobs by token id: of the second prompt token, ..., of the last output token;
            each holds the likeliest `NUM_LOGPROBS` and the token itself.
        error: why the engine ended the request; then rows may be missing.
    """

    prompt: list[int]
    output: list[int]
    rows: list[Row]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineResult:
    """What is kept of the engine.

    Attributes:
        runs: one per prompt.
        layers: its attention layers, on the first rank; None if they cannot be seen from here.
        dtype: of weights and activations.
        tokens: a text for each token id that may have to be shown.
    """

    runs: list[EngineRun]
    layers: list[LayerFacts] | None
    dtype: str
    tokens: dict[int, str]


def run_engine(
    arguments: Mapping[str, Any], prompts: Sequence[str | list[int]] | None, max_tokens: int
) -> EngineResult:
    """Build the engine, run the prompts, and let it go.

    Args:
        arguments: of `LLM`.
        prompts: texts or token ids; None takes built-in ones.
        max_tokens: output tokens per prompt.

    Raises:
        ConfigError: an argument is wrong, or the model is refused.
        ModelLoadError: the checkpoint does not match the model.
        VLLMValidationError: a prompt does not fit the model.
    """
    from vllm import LLM

    llm = LLM(**arguments)
    try:
        layers = _layers(llm)
        chosen = prompts if prompts is not None else _built_in(llm, layers or [], max_tokens)
        runs = [_run_of(output) for output in _generate(llm, chosen, max_tokens)]
        dtype = str(llm.llm_engine.model_config.dtype).removeprefix("torch.")
        return EngineResult(runs, layers, dtype, _texts(llm.get_tokenizer(), runs))
    finally:
        llm.shutdown()
        del llm
        gc.collect()


def _layers(llm: "LLM") -> list[LayerFacts] | None:
    try:
        found: list[LayerFacts] = llm.apply_model(attention_layers)[0]
    except VLLMValidationError:  # The ranks run in processes of their own.
        return None
    return found


def _built_in(llm: "LLM", layers: Sequence[LayerFacts], max_tokens: int) -> list[list[int]]:
    config = llm.llm_engine.vllm_config
    windows = sorted({layer.window for layer in layers if layer.window is not None})
    lengths = built_in_lengths(
        block_size=config.cache_config.block_size,
        windows=windows,
        max_tokens=max(1, config.model_config.max_model_len - max_tokens),
    )
    return built_in_prompts(llm.get_tokenizer(), config.model_config.vocab_size, lengths=lengths)


def _generate(
    llm: "LLM", prompts: Sequence[str | list[int]], max_tokens: int
) -> list["RequestOutput"]:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    params = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=NUM_LOGPROBS,
        prompt_logprobs=NUM_LOGPROBS,
    )
    inputs = [p if isinstance(p, str) else TokensPrompt(prompt_token_ids=p) for p in prompts]
    return llm.generate(inputs, params, use_tqdm=False)


def _run_of(output: "RequestOutput") -> EngineRun:
    choice = output.outputs[0]
    positions = [*(output.prompt_logprobs or [None])[1:], *(choice.logprobs or [])]
    rows: list[Row] = [
        {token: entry.logprob for token, entry in (position or {}).items()}
        for position in positions
    ]
    return EngineRun(
        list(output.prompt_token_ids or []), list(choice.token_ids), rows, output.error
    )


def _texts(tokenizer: Any, runs: Sequence[EngineRun]) -> dict[int, str]:
    """Texts of the tokens that were likely somewhere in an output."""
    if tokenizer is None:
        return {}
    ids = {token for run in runs for row in run.rows[len(run.prompt) - 1 :] for token in row}
    return {token: tokenizer.decode([token]) for token in sorted(ids)}
