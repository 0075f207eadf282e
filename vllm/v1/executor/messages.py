# SPDX-License-Identifier: Apache-2.0
"""What crosses between an executor and workers in other processes: msgpack with types, never
pickle. A call names a worker's method; what a step takes and gives has its own types, anything
else is plain data (numbers, texts, lists, mappings).
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from vllm import exceptions
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.v1 import kv_cache_interface
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

STEP = "execute_model"
SHUTDOWN = "shutdown"  # ends the process; not answered
_RECORD = "$record"  # marks a record of `kv_cache_interface`, by its class


class WorkerCall(msgspec.Struct, array_like=True, gc=False):
    """A call of a worker's method; answered under the same id."""

    call_id: int
    method: str
    args: msgspec.Raw
    kwargs: dict[str, Any]


class WorkerReply(msgspec.Struct, array_like=True, gc=False):
    """What a worker answers: a result, or the error's class name and message."""

    call_id: int
    result: msgspec.Raw
    error_type: str | None = None
    error_message: str = ""


def _enc_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    raise TypeError(f"{type(value).__name__} is no plain data")


def _dec_hook(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, shape, data = value
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    raise TypeError(f"cannot read a {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind, dec_hook=_dec_hook)
    for kind in (
        WorkerCall,
        WorkerReply,
        ModelRunnerOutput | None,
        tuple[SchedulerOutput, GrammarOutput | None],
    )
}
_plain: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


def encode_call(
    call_id: int, method: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """A call as bytes.

    Raises:
        VLLMValidationError: it is a function, or an argument is no plain data.
    """
    if not isinstance(method, str):
        raise VLLMValidationError(
            f"{getattr(method, '__name__', method)!s}: the workers run in other processes, where "
            "functions cannot go; pass the name of a worker's method, or run one rank in this "
            "process (tensor_parallel_size=1, or distributed_executor_backend="
            "'external_launcher')",
            parameter="method",
        )
    plain = args if method == STEP else tag_records(args)
    return _encoder.encode(
        WorkerCall(call_id, method, msgspec.Raw(_encode(plain, method)), dict(kwargs))
    )


def decode_call(data: bytes) -> tuple[int, str, Sequence[Any], dict[str, Any]]:
    """Id, method, arguments and keyword arguments of a call."""
    call: WorkerCall = _decoders[WorkerCall].decode(data)
    if call.method == STEP:
        args = _decoders[tuple[SchedulerOutput, GrammarOutput | None]].decode(call.args)
    else:
        args = untag_records(_plain.decode(call.args))
    return call.call_id, call.method, args, call.kwargs


def method_of(data: bytes) -> str:
    """The method that a call names."""
    call: WorkerCall = _decoders[WorkerCall].decode(data)
    return call.method


def encode_result(call_id: int, method: str, result: Any) -> bytes:
    """An answer as bytes.

    Raises:
        VLLMValidationError: the result is no plain data.
    """
    plain = result if method == STEP else tag_records(result)
    return _encoder.encode(WorkerReply(call_id, msgspec.Raw(_encode(plain, method))))


def encode_error(call_id: int, error: BaseException) -> bytes:
    """A failure as bytes."""
    message = str(error) if isinstance(error, VLLMError) else f"{type(error).__name__}: {error}"
    nothing = msgspec.Raw(_encoder.encode(None))
    return _encoder.encode(WorkerReply(call_id, nothing, type(error).__name__, message))


def decode_reply(data: bytes) -> WorkerReply:
    """An answer, its result still packed."""
    reply: WorkerReply = _decoders[WorkerReply].decode(data)
    return reply


def decode_result(reply: WorkerReply, method: str) -> Any:
    """The result of `method` out of an answer."""
    if method == STEP:
        return _decoders[ModelRunnerOutput | None].decode(reply.result)
    return untag_records(_plain.decode(reply.result))


def rebuild_error(error_type: str | None, message: str) -> Exception:
    """An error of another process: the engine's own types as themselves."""
    cls = getattr(exceptions, error_type or "", None)
    if isinstance(cls, type) and issubclass(cls, Exception):
        error: Exception = cls(message)
        return error
    return RuntimeError(message)


def step_fingerprint(step: SchedulerOutput, grammar: GrammarOutput | None = None) -> int:
    """A number that two steps share only if they compute the same, whatever the requests' ids."""
    new = [
        (r.prompt_token_ids, r.output_token_ids, r.sampling_params, r.block_ids)
        for r in step.scheduled_new_reqs
    ]
    cached = [(r.new_block_ids, r.num_computed_tokens) for r in step.scheduled_cached_reqs]
    tokens = step.num_scheduled_tokens
    whole = zlib.crc32(_encoder.encode((new, cached, list(tokens.values()))))
    if grammar is None:
        return whole
    rows = [list(tokens).index(req_id) for req_id in grammar.req_ids]
    return zlib.crc32(_encoder.encode((rows, grammar.bitmask)), whole)


def tag_records(value: Any) -> Any:
    """`value` with each record of `kv_cache_interface` as a mapping that names its class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: tag_records(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {_RECORD: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {key: tag_records(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tag_records(item) for item in value]
    return value


def untag_records(value: Any) -> Any:
    """What `tag_records` was given. Inside records, sequences are tuples, as they are there."""
    if isinstance(value, list):
        return [untag_records(item) for item in value]
    if not isinstance(value, dict):
        return value
    items = {key: untag_records(item) for key, item in value.items() if key != _RECORD}
    if _RECORD not in value:
        return items
    cls = getattr(kv_cache_interface, value[_RECORD], None)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"there is no record {value[_RECORD]!r} of the KV cache")
    return cls(**{key: _tuples(item) for key, item in items.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _encode(value: Any, method: str) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise VLLMValidationError(
            f"{method}: only numbers, texts, lists and mappings go between the engine and its "
            f"workers ({error})"
        ) from error
