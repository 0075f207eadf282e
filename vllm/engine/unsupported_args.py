# SPDX-License-Identifier: Apache-2.0
"""Upstream's engine arguments that this engine lacks: taken at the value that asks for nothing.

Anything else is refused by name and with the reason, never swallowed.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One argument.

    Attributes:
        neutral: values that ask for nothing; the first is upstream's default.
        reason: why others are refused.
    """

    neutral: tuple[Any, ...]
    reason: str


_TENSOR_PARALLEL_ONLY = "models are split by tensor_parallel_size only"
_NO_LORA = "adapters are not supported"
_TEXT_ONLY = "this engine takes text only"
_NO_COMPILE = "this engine never compiles or captures the model"
_NO_QUANTIZATION = "quantised computation is not supported; GGUF weights are unpacked at load"
_NO_SPECULATION = "speculative decoding is not supported"
_NO_TRANSFER = "keys and values are not sent to other engines"

UNSUPPORTED: Mapping[str, Unsupported] = {
    "allow_deprecated_quantization": Unsupported((False,), _NO_QUANTIZATION),
    "allowed_local_media_path": Unsupported(("",), _TEXT_ONLY),
    "async_scheduling": Unsupported((None, False), "steps are scheduled one after the other"),
    "calculate_kv_scales": Unsupported((False,), _NO_QUANTIZATION),
    "code_revision": Unsupported((None,), "code that comes with a model follows its revision"),
    "compilation_config": Unsupported((None, {}, 0), _NO_COMPILE),
    "config_format": Unsupported(("auto", "hf"), "configurations are read in Transformers' form"),
    "convert": Unsupported(("auto", "none"), "models generate text; they are not converted"),
    "cpu_offload_gb": Unsupported((0,), "weights stay on the model's device"),
    "cuda_graph_sizes": Unsupported((None, []), _NO_COMPILE),
    "data_parallel_size": Unsupported((1, None), _TENSOR_PARALLEL_ONLY),
    "decode_context_parallel_size": Unsupported((1,), _TENSOR_PARALLEL_ONLY),
    "device": Unsupported(("auto", "cpu"), "the platform is chosen by what is installed"),
    "disable_cascade_attn": Unsupported((True, False), "there is no cascade attention"),
    "disable_custom_all_reduce": Unsupported((False, True), "there is no custom all-reduce"),
    "enable_expert_parallel": Unsupported((False,), _TENSOR_PARALLEL_ONLY),
    "enable_lora": Unsupported((False,), _NO_LORA),
    "enable_prompt_embeds": Unsupported((False,), "prompts are text or token ids"),
    "enable_sleep_mode": Unsupported((False,), "this version cannot sleep"),
    "fully_sharded_loras": Unsupported((False,), _NO_LORA),
    "ignore_patterns": Unsupported((None, "original/**/*", []), "only known files are fetched"),
    "kv_cache_dtype": Unsupported(("auto",), "keys and values have the model's dtype"),
    "kv_events_config": Unsupported((None,), _NO_TRANSFER),
    "kv_transfer_config": Unsupported((None,), _NO_TRANSFER),
    "limit_mm_per_prompt": Unsupported((None, {}), _TEXT_ONLY),
    "lora_modules": Unsupported((None, []), _NO_LORA),
    "max_cpu_loras": Unsupported((None,), _NO_LORA),
    "max_long_partial_prefills": Unsupported((1,), "prompts are cut by the step's budget"),
    "max_lora_rank": Unsupported((None, 16), _NO_LORA),
    "max_loras": Unsupported((1,), _NO_LORA),
    "max_num_partial_prefills": Unsupported((1,), "prompts are cut by the step's budget"),
    "max_parallel_loading_workers": Unsupported((None,), "each rank reads the weights itself"),
    "max_seq_len_to_capture": Unsupported((8192, None), _NO_COMPILE),
    "media_io_kwargs": Unsupported((None, {}), _TEXT_ONLY),
    "mm_processor_kwargs": Unsupported((None, {}), _TEXT_ONLY),
    "model_loader_extra_config": Unsupported((None, {}), "the loader takes no extra settings"),
    "num_lookahead_slots": Unsupported((0,), _NO_SPECULATION),
    "optimization_level": Unsupported((None, 0, 1, 2, 3), _NO_COMPILE),
    "pipeline_parallel_size": Unsupported((1,), _TENSOR_PARALLEL_ONLY),
    "prefix_caching_hash_algo": Unsupported(("sha256", None), "prefixes are hashed with sha256"),
    "quantization": Unsupported((None, "gguf"), _NO_QUANTIZATION),
    "ray_workers_use_nsight": Unsupported((False,), "workers are not profiled"),
    "reasoning_parser": Unsupported(("", None), "reasoning is not parsed out of the text"),
    "runner": Unsupported(("auto", "generate"), "models generate text; there is no pooling"),
    "speculative_config": Unsupported((None, {}), _NO_SPECULATION),
    "swap_space": Unsupported((4, 0, 4.0, 0.0), "preempted requests are computed anew"),
    "task": Unsupported((None, "auto", "generate"), "models generate text"),
    "use_tqdm_on_load": Unsupported((True, False), "loading shows no bar"),
    "worker_cls": Unsupported(("auto", None), "the platform chooses the worker"),
    "worker_extension_cls": Unsupported(("", None), "workers are not extended"),
}


def check_unsupported(arguments: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse arguments that are not `known`, except upstream's at a neutral value.

    Raises:
        ConfigError: upstream has the argument, and it asks for something.
        TypeError: there is no such argument; the message names the nearest.
    """
    names = set(known)
    for name, value in arguments.items():
        entry = UNSUPPORTED.get(name)
        if entry is None:
            raise TypeError(_unknown(name, names | UNSUPPORTED.keys()))
        if not any(value is n or (type(value) is type(n) and value == n) for n in entry.neutral):
            raise ConfigError(
                f"{name}={value!r} is not supported: {entry.reason}; leave it at "
                f"{entry.neutral[0]!r}"
            )


def read_value(text: str) -> Any:
    """A flag's text as the Python value it stands for: JSON where it is, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _unknown(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{name!r} is not an engine argument{hint}"
