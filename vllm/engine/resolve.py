# SPDX-License-Identifier: Apache-2.0
"""From what the user typed to the frozen configuration: every "auto" is decided here, once.

Reads the model's small files (configuration, generation config); never its weights.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.config import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    VllmConfig,
)
from vllm.engine.arg_spec import human_int, length_or_auto
from vllm.engine.arguments import Arguments
from vllm.engine.resolve_parallel import resolve_parallel_config, resolve_seed
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

logger = init_logger(__name__)

DEFAULT_BLOCK_SIZE = 16
DEFAULT_GPU_MEMORY_SHARE, DEFAULT_CPU_MEMORY_SHARE = 0.9, 0.5
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_MAX_NUM_SEQS = 128
# Sampling fields that a generation config may set, by their name there.
_GENERATION_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}
_DTYPES = ("float16", "bfloat16", "float32")
_MAX_TEMPLATE_CHARS = 1_000_000
_AS_LONG_AS_IT_TAKES_S = 1e6  # threads cannot wait for infinity


def resolve(args: Arguments) -> VllmConfig:
    """The configuration that `args` ask for.

    Raises:
        ConfigError: an argument is wrong, or wrong for this model.
    """
    model_config = resolve_model_config(args)
    _log_choices(model_config)
    return VllmConfig(
        model_config=model_config,
        cache_config=_cache_config(args),
        scheduler_config=_scheduler_config(args, model_config.max_model_len),
        load_config=LoadConfig(load_format=args.load_format, download_dir=args.download_dir),  # type: ignore[arg-type]
        parallel_config=resolve_parallel_config(args, model_config.hf_config),
        structured_outputs_config=_structured_outputs_config(args),
        observability_config=ObservabilityConfig(
            disable_log_stats=args.disable_log_stats, log_interval_s=args.log_interval_s
        ),
        attention_backend=args.attention_backend,
    )


def resolve_model_config(args: Arguments) -> ModelConfig:
    """The model's part."""
    from vllm.transformers_utils.config import (
        get_config,
        get_eos_token_ids,
        get_generation_config,
    )

    name, path = _locate(args)
    hf_config = get_config(path, args.revision, args.trust_remote_code, args.hf_overrides)
    own_generation_config = get_generation_config(path)
    length, is_auto = resolve_max_model_len(args.max_model_len, hf_config)
    return ModelConfig(
        model=name,
        path=path,
        served_model_name=_served_names(args.served_model_name, name),
        tokenizer=args.tokenizer or str(path),
        hf_config=hf_config,
        architecture=_architecture(hf_config, args.model_impl),
        dtype=resolve_dtype(args.dtype, hf_config, is_gguf=path.suffix == ".gguf"),
        max_model_len=length,
        auto_max_model_len=is_auto,
        vocab_size=int(hf_config.get_text_config().vocab_size),
        seed=resolve_seed(args),
        generation_defaults=generation_defaults(args, own_generation_config),
        eos_token_ids=get_eos_token_ids(hf_config, own_generation_config),
        max_logprobs=args.max_logprobs,
        logprobs_mode=args.logprobs_mode,  # type: ignore[arg-type]
        skip_tokenizer_init=args.skip_tokenizer_init,
        trust_remote_code=args.trust_remote_code,
        revision=args.revision,
        tokenizer_revision=args.tokenizer_revision or args.revision,
        tokenizer_mode=args.tokenizer_mode,
        chat_template=_chat_template(args.chat_template),
    )


def resolve_dtype(
    dtype: Any, hf_config: "PretrainedConfig", *, is_gguf: bool = False
) -> "torch.dtype":
    """The dtype to compute in.

    "auto" keeps a checkpoint's bfloat16 or float16. Of float32 checkpoints, and of GGUF files,
    whose values are unpacked anyway, it takes bfloat16: half the memory traffic, and the range
    of float32, so that nothing overflows.

    Raises:
        ConfigError: there is no such dtype.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name == "auto":
        own = getattr(hf_config, "dtype", None) or getattr(
            hf_config.get_text_config(), "dtype", None
        )
        name = "bfloat16" if is_gguf else str(own or "float32").removeprefix("torch.")
        if name not in ("float16", "bfloat16"):
            name = "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"dtype={dtype!r}: pass auto, {', '.join(_DTYPES)}, half or float")
    resolved: torch.dtype = getattr(torch, name)
    return resolved


def resolve_max_model_len(
    wanted: int | str | None, hf_config: "PretrainedConfig"
) -> tuple[int, bool]:
    """The length in tokens, and whether the engine may lower it to what its cache holds.

    Raises:
        ConfigError: it is no length, or longer than the model's positions reach.
    """
    limit = model_length_limit(hf_config)
    if isinstance(wanted, str):
        try:
            wanted = length_or_auto(wanted)
        except ValueError as error:
            raise ConfigError(f"max_model_len: {error}") from None
    if wanted is None or wanted == -1:
        if limit is None:
            raise ConfigError("the model's configuration names no length; pass max_model_len")
        return limit, wanted == -1
    if wanted < 1:
        raise ConfigError(f"max_model_len={wanted}: pass at least 1, or -1 for auto")
    if limit is not None and wanted > limit:
        raise ConfigError(
            f"max_model_len={wanted} is beyond this model's limit of {limit} tokens; pass at most "
            f"{limit}, or extend the model's positions with hf_overrides"
        )
    return wanted, False


def model_length_limit(hf_config: "PretrainedConfig") -> int | None:
    """Longest context the model's positions reach, in tokens; None if it names none."""
    text_config = hf_config.get_text_config()
    limit = getattr(text_config, "max_position_embeddings", None)
    if limit is None:
        return None
    rope = getattr(text_config, "rope_parameters", None) or {}
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if rope.get("rope_type") == "yarn" and original and factor:
        # Some checkpoints name the length before the extension, some the one after it.
        limit = max(limit, int(original * factor))
    return int(limit)


def generation_defaults(args: Arguments, own: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling fields from the model's generation config, or the folder that was named.

    Raises:
        ConfigError: the folder holds none, or an override is not a sampling field.
    """
    from vllm.transformers_utils.config import get_generation_config

    source: Mapping[str, Any] = {} if args.generation_config == "vllm" else own
    if args.generation_config not in ("auto", "vllm"):
        source = get_generation_config(args.generation_config)
        if not source:
            raise ConfigError(
                f"generation_config={args.generation_config!r}: the folder holds no "
                "generation_config.json; pass auto, vllm or a folder that has one"
            )
    overrides = args.override_generation_config or {}
    accepted = _GENERATION_FIELDS.keys() | _GENERATION_FIELDS.values()
    for name in overrides:
        if name not in accepted:
            raise ConfigError(
                f"override_generation_config: {name!r} is not one of {', '.join(sorted(accepted))}"
            )
    merged = {k: v for k, v in source.items() if k in _GENERATION_FIELDS} | dict(overrides)
    return {_GENERATION_FIELDS.get(k, k): v for k, v in merged.items() if v is not None}


def _locate(args: Arguments) -> tuple[str, Path]:
    """Name and place of the model; fetched if need be."""
    from vllm.transformers_utils.repo_utils import resolve_model

    if args.model is None:
        from vllm.transformers_utils.default_model import DEFAULT_MODEL_NAME, ensure_default_model

        return DEFAULT_MODEL_NAME, Path(ensure_default_model())
    found = resolve_model(
        args.model, args.revision, args.load_format, download_dir=args.download_dir
    )
    return args.model, found.path


def _served_names(given: str | tuple[str, ...] | list[str] | None, model: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given or (model,))
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"served_model_name={given!r}: pass non-empty names")
    return names


# What configurations call the number of routed experts.
_EXPERT_COUNTS = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")


def _architecture(hf_config: "PretrainedConfig", model_impl: str) -> str:
    """The class the registry is asked for: the checkpoint's own, or the Transformers backend's."""
    from vllm.model_executor.models.registry import (
        TRANSFORMERS_BACKEND,
        TRANSFORMERS_MOE_BACKEND,
        ModelRegistry,
    )

    architectures = getattr(hf_config, "architectures", None)
    if not architectures:
        raise ConfigError(
            "the model's configuration names no architecture; pass it with "
            'hf_overrides={"architectures": [...]}'
        )
    architecture = str(architectures[0])
    is_own = architecture in ModelRegistry.get_supported_archs()
    if model_impl == "transformers" or (model_impl == "auto" and not is_own):
        has_experts = any(getattr(hf_config.get_text_config(), n, None) for n in _EXPERT_COUNTS)
        return TRANSFORMERS_MOE_BACKEND if has_experts else TRANSFORMERS_BACKEND
    return architecture


def _chat_template(given: str | None) -> str | None:
    """The template's text; a value without template syntax is the name of a file."""
    if given is None or "{" in given or "\n" in given:
        return given
    try:
        text = Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"chat_template={given!r} is neither a template nor a readable file"
        ) from error
    if len(text) > _MAX_TEMPLATE_CHARS:
        raise ConfigError(f"chat_template={given!r} is too large for a template")
    return text


def _cache_config(args: Arguments) -> CacheConfig:
    return CacheConfig(
        block_size=DEFAULT_BLOCK_SIZE if args.block_size is None else args.block_size,
        gpu_memory_utilization=_memory_share(args.gpu_memory_utilization),
        kv_cache_memory_bytes=_human("kv_cache_memory_bytes", args.kv_cache_memory_bytes),
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        enable_prefix_caching=args.enable_prefix_caching is not False,
        disable_hybrid_kv_cache_manager=bool(args.disable_hybrid_kv_cache_manager),
        watermark=args.watermark,
    )


def _memory_share(given: float | None) -> float:
    """On the CPU half is left to whatever else runs on the machine."""
    from vllm.platforms import current_platform

    if given is not None:
        return given
    return DEFAULT_CPU_MEMORY_SHARE if current_platform().is_cpu() else DEFAULT_GPU_MEMORY_SHARE


def _scheduler_config(args: Arguments, max_model_len: int) -> SchedulerConfig:
    chunked = args.enable_chunked_prefill is not False
    budget = _human("max_num_batched_tokens", args.max_num_batched_tokens)
    if budget is None:
        # Without chunks the longest prompt must fit in one step.
        budget = max(DEFAULT_MAX_NUM_BATCHED_TOKENS, 0 if chunked else max_model_len)
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=DEFAULT_MAX_NUM_SEQS if args.max_num_seqs is None else args.max_num_seqs,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        policy=args.scheduling_policy,  # type: ignore[arg-type]
        max_waiting_requests=args.max_waiting_requests,
        max_waiting_tokens=args.max_waiting_tokens,
    )


def _structured_outputs_config(args: Arguments) -> StructuredOutputsConfig:
    given = dict(args.structured_outputs_config or {})
    known = {f.name for f in fields(StructuredOutputsConfig)}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"structured_outputs_config: {name!r} is not one of {', '.join(sorted(known))}"
            )
    if args.distributed_executor_backend == "external_launcher":
        if "compile_timeout_s" in given:
            raise ConfigError(
                f"structured_outputs_config: compile_timeout_s={given['compile_timeout_s']!r}: "
                "with distributed_executor_backend='external_launcher' ranks could time out apart "
                "and wait for each other; leave it out, grammars are then compiled to the end"
            )
        given["compile_timeout_s"] = _AS_LONG_AS_IT_TAKES_S
    return StructuredOutputsConfig(**given)


def _human(name: str, value: int | str | None) -> int | None:
    if not isinstance(value, str):
        return value
    try:
        return human_int(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def _log_choices(config: ModelConfig) -> None:
    logger.info(
        "%s: %s, %s, context of %d tokens",
        config.model,
        config.architecture,
        str(config.dtype).removeprefix("torch."),
        config.max_model_len,
    )
    if config.generation_defaults:
        logger.info(
            "sampling defaults taken from the model: %s (generation_config='vllm' leaves them out)",
            json.dumps(config.generation_defaults),
        )
