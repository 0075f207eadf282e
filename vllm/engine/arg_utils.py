# SPDX-License-Identifier: Apache-2.0
"""What a user types about an engine: as keywords of `LLM`, and as flags of `vllm serve`.

Each field carries default, help, group and unit; flags are made from them. Nothing is resolved
here: `create_engine_config` turns the typed into the resolved, see `resolve`.
"""

# ruff: noqa: RUF009 - `arg` returns a dataclass field, which is what belongs there
import argparse
import dataclasses
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, TypeVar, get_args

from vllm.config import VllmConfig
from vllm.config.load import LOAD_FORMATS
from vllm.config.model import LogprobsMode
from vllm.config.parallel import EXECUTOR_BACKENDS
from vllm.engine.arg_spec import (
    ArgSpec,
    add_flag,
    arg,
    human_int,
    json_object,
    length_or_auto,
)
from vllm.engine.unsupported_args import UNSUPPORTED, check_unsupported, read_value
from vllm.exceptions import ConfigError

_MODEL, _LOAD, _CACHE = "Model", "Loading", "KV cache"
_STEP, _SAMPLING, _OTHER = "Scheduling", "Sampling", "Engine"

Args = TypeVar("Args", bound="EngineArgs")


@dataclass(init=False, eq=True)
class EngineArgs:
    """Arguments of an engine, with upstream's names.

    `EngineArgs(model, **arguments)`; an unknown name or a value of the wrong type is refused at
    construction.
    """

    model: str | None = arg(
        None, "Folder, .gguf file or hub id; SmolLM2-135M-Instruct if left out.", _MODEL, str
    )
    served_model_name: str | tuple[str, ...] | None = arg(
        None, "Names the API answers to; the first is reported.", _MODEL, tuple, list, str
    )
    tokenizer: str | None = arg(None, "Tokenizer, if it is not the model's own.", _MODEL, str)
    tokenizer_mode: str = arg(
        "auto", "Which tokenizer class.", _MODEL, choices=("auto", "hf", "slow")
    )
    skip_tokenizer_init: bool = arg(False, "Serve token ids only.", _MODEL)
    revision: str | None = arg(None, "Branch, tag or commit of a hub id.", _MODEL, str)
    tokenizer_revision: str | None = arg(None, "The same for the tokenizer.", _MODEL, str)
    trust_remote_code: bool = arg(False, "Run code that comes with the checkpoint.", _MODEL)
    dtype: Any = arg(
        "auto",
        "Type of weights and activations; auto keeps the checkpoint's, and takes bfloat16 for "
        "float32 and GGUF.",
        _MODEL,
        object,
        parse=str,
    )
    max_model_len: int | str | None = arg(
        None,
        "Longest prompt plus output; the model's limit if left out, what the KV cache holds "
        "with auto.",
        _MODEL,
        int,
        str,
        unit="tokens",
        parse=length_or_auto,
    )
    hf_overrides: dict[str, Any] | None = arg(
        None, "Fields of the model's configuration to replace.", _MODEL, dict, parse=json_object
    )
    model_impl: str = arg(
        "auto",
        "Whose model code: this engine's own, that of Transformers with this engine's layers, or "
        "(auto) the own where there is one.",
        _MODEL,
        choices=("auto", "vllm", "transformers"),
    )
    chat_template: str | None = arg(
        None, "Chat template, as text or file, if not the tokenizer's.", _MODEL, str
    )
    load_format: str = arg("auto", "How the weights are stored.", _LOAD, choices=LOAD_FORMATS)
    download_dir: str | None = arg(None, "Folder for files from the hub.", _LOAD, str)
    block_size: int | None = arg(
        None, "Size of a block; 16 if left out.", _CACHE, int, unit="tokens"
    )
    gpu_memory_utilization: float | None = arg(
        None,
        "Share of the memory this process may use (GPU, or control group and host) that the "
        "engine takes in all; 0.9 on a GPU and 0.5 on the CPU if left out.",
        _CACHE,
        float,
    )
    kv_cache_memory_bytes: int | str | None = arg(
        None,
        "Exact size of the cache; overrides the share.",
        _CACHE,
        int,
        str,
        unit="bytes",
        parse=human_int,
    )
    num_gpu_blocks_override: int | None = arg(None, "Exact number of blocks.", _CACHE, int)
    enable_prefix_caching: bool | None = arg(
        None, "Share blocks between requests with equal prefixes; on if left out.", _CACHE, bool
    )
    watermark: float = arg(
        0.01, "Share of the blocks that admission leaves free for running requests.", _CACHE
    )
    disable_hybrid_kv_cache_manager: bool | None = arg(
        None, "Keep whole contexts for windowed layers too.", _CACHE, bool
    )
    max_num_batched_tokens: int | str | None = arg(
        None,
        "Most tokens in a step; 2048 if left out.",
        _STEP,
        int,
        str,
        unit="tokens",
        parse=human_int,
    )
    max_num_seqs: int | None = arg(
        None, "Most requests running at once; 128 if left out.", _STEP, int, unit="requests"
    )
    enable_chunked_prefill: bool | None = arg(
        None, "Let a prompt span several steps; on if left out.", _STEP, bool
    )
    long_prefill_token_threshold: int = arg(
        0, "Most tokens one prompt gets in a step; 0 is no cap.", _STEP, unit="tokens"
    )
    scheduling_policy: str = arg("fcfs", "Who goes first.", _STEP, choices=("fcfs", "priority"))
    max_waiting_requests: int | None = arg(
        None,
        "Refuse requests beyond so many that wait; unbounded if left out.",
        _STEP,
        int,
        unit="requests",
    )
    max_waiting_tokens: int | None = arg(
        None, "The same, counted in prompt tokens.", _STEP, int, unit="tokens"
    )
    seed: int | None = arg(
        None, "Seed of requests that bring none; each draws its own if left out.", _SAMPLING, int
    )
    generation_config: str = arg(
        "auto",
        "Where sampling defaults come from: auto (the model), vllm (none), or a folder.",
        _SAMPLING,
    )
    override_generation_config: dict[str, Any] | None = arg(
        None, "Sampling defaults that override them.", _SAMPLING, dict, parse=json_object
    )
    max_logprobs: int = arg(
        20, "Most logprobs per token a request may ask for; -1 is the vocabulary.", _SAMPLING
    )
    logprobs_mode: str = arg(
        "raw_logprobs",
        "Logprobs before or after penalties and masks.",
        _SAMPLING,
        choices=get_args(LogprobsMode),
    )
    structured_outputs_config: dict[str, Any] | None = arg(
        None, "Limits on grammars, e.g. max_spec_bytes.", _SAMPLING, dict, parse=json_object
    )
    tensor_parallel_size: int = arg(1, "Ranks that split each layer.", _OTHER, short="-tp")
    distributed_executor_backend: str | None = arg(
        None,
        "Who starts the ranks: the engine on this machine (uni for one, mp for more, chosen so if "
        "left out), a Ray cluster, or an external launcher such as torchrun.",
        _OTHER,
        str,
        choices=EXECUTOR_BACKENDS,
    )
    attention_backend: str | None = arg(
        None, "Attention backend; the selector chooses if left out.", _OTHER, str
    )
    enforce_eager: bool = arg(False, "Taken for upstream's sake: nothing is compiled.", _OTHER)
    disable_log_stats: bool = arg(False, "Keep no statistics.", _OTHER)
    log_interval_s: float = arg(
        10.0, "Time between lines of statistics in the log.", _OTHER, unit="seconds"
    )

    _specs: ClassVar[dict[str, ArgSpec]]

    def __init__(self, model: str | None = None, **arguments: Any) -> None:
        """Take arguments by upstream's names.

        Raises:
            ConfigError: a value is of the wrong type, or asks for what this engine lacks.
            TypeError: there is no such argument.
        """
        arguments["model"] = model
        known = {f.name: f for f in dataclasses.fields(self)}
        check_unsupported({k: v for k, v in arguments.items() if k not in known}, known)
        for name, field in known.items():
            value = arguments.get(name, field.default)
            spec: ArgSpec = field.metadata["spec"]
            spec.check(name, value)
            setattr(self, name, value)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag per argument, in groups; those of upstream's that are refused stay hidden."""
        groups: dict[str, argparse._ArgumentGroup] = {}
        for field in dataclasses.fields(cls):
            spec: ArgSpec = field.metadata["spec"]
            if spec.group not in groups:
                groups[spec.group] = parser.add_argument_group(spec.group)
            add_flag(groups[spec.group], field.name, field.default, spec)
        for name in UNSUPPORTED:
            parser.add_argument(
                "--" + name.replace("_", "-"),
                nargs="?",
                type=read_value,
                const=True,
                default=MISSING,
                help=argparse.SUPPRESS,
            )
        return parser

    @classmethod
    def from_cli_args(cls: type[Args], args: argparse.Namespace) -> Args:
        """The arguments as a parser read them.

        Raises:
            ConfigError: a value is wrong, or asks for what this engine lacks.
        """
        names = [f.name for f in dataclasses.fields(cls)] + list(UNSUPPORTED)
        given = {n: getattr(args, n) for n in names if getattr(args, n, MISSING) is not MISSING}
        return cls(**given)

    def create_engine_config(self) -> VllmConfig:
        """Resolve every "auto"; the one place where that happens.

        Raises:
            ConfigError: an argument is wrong, or wrong for this model.
        """
        from vllm.engine.resolve import resolve

        return resolve(self)


class AsyncEngineArgs(EngineArgs):
    """Arguments of an engine that serves concurrently; the same ones."""

    def create_engine_config(self) -> VllmConfig:
        """As for every engine; what only `LLM` can do is refused.

        Raises:
            ConfigError: an argument is wrong, or wrong for this model or a server.
        """
        if self.distributed_executor_backend == "external_launcher":
            raise ConfigError(
                "distributed_executor_backend='external_launcher' is for programs that torchrun "
                "or a trainer starts once per rank and that call LLM; a server starts its ranks "
                "itself: pass 'mp' (this machine) or 'ray' (a cluster), or leave it out"
            )
        return super().create_engine_config()


__all__ = ["AsyncEngineArgs", "EngineArgs"]
