# SPDX-License-Identifier: Apache-2.0
"""Load accounting: every checkpoint tensor used, every parameter element written, once.

Owns the proof that a load was complete. It watches the copies themselves, below the models'
loaders, so a loader cannot forget to report and needs no bookkeeping of its own. Knows neither
file formats nor models.

How a load is watched:

1. The source is read through `stream`, which notes each tensor's name, file and place in memory.
2. While the model loads, a dispatch mode sees every `copy_`, `fill_` and `zero_` and notes which
   elements of which storage it wrote, and which checkpoint tensor it read.
3. At the end each parameter's elements are compared with what was written into its storage.

Written twice means: copied twice from the checkpoint. A fill under a copy (padding) is no fault.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.weight_source import Weight, WeightSource

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Tensor)
_FILLS = (torch.ops.aten.zero_.default, torch.ops.aten.fill_.Scalar)
_MAX_NAMED = 5

LoadFn = Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]]
Runs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Record:
    """One checkpoint tensor; only its place in memory is kept, not its values."""

    name: str
    file: str
    shape: list[int]
    start: int
    end: int
    is_used: bool = False

    def holds(self, address: int) -> bool:
        return self.start <= address < self.end

    def __str__(self) -> str:
        return f"{self.name} (shape {self.shape}, from {self.file})"


@dataclass(slots=True)
class _Writes:
    """Which elements of one storage were written.

    Attributes:
        storage: held so that its address cannot be given to another tensor meanwhile.
        copied: runs of elements copied from the checkpoint, each [n, 2] of first and past-last.
        filled: runs set to a constant, or copied from elsewhere.
        names: checkpoint tensors copied here.
    """

    storage: torch.UntypedStorage
    copied: list[Runs] = field(default_factory=list)
    filled: list[Runs] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


class LoadAccounting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches one load. `account_load` is the way to use it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; True would import the compiler, a second and a half at start.
        return False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._records: dict[str, _Record] = {}
        self._current: _Record | None = None
        self._is_reading = False
        self._converted: tuple[_Record, ...] = ()
        self._writes: dict[int, _Writes] = {}
        self._homes: dict[int, torch.UntypedStorage] = {}
        self._find_homes()

    def stream(self, source: WeightSource) -> Iterator[tuple[str, torch.Tensor]]:
        """The (name, tensor) pairs of `source`, each noted.

        Raises:
            ModelLoadError: a name comes twice.
        """
        iterator = iter(source)
        while True:
            self._current, self._is_reading = None, True
            with _disable_current_modes():
                weight = next(iterator, None)
            if weight is None:
                self._is_reading = False
                return
            self._current = self._note(weight)
            self._is_reading = False
            yield weight.name, weight.tensor
            del weight  # it must not live on while the next one is read

    def _note(self, weight: Weight) -> _Record:
        earlier = self._records.get(weight.name)
        if earlier is not None:
            raise ModelLoadError(
                f"{weight.name} is in the checkpoint twice: in {earlier.file} and in {weight.file}"
            )
        tensor = weight.tensor
        start = tensor.data_ptr()
        extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        record = _Record(
            name=weight.name,
            file=weight.file,
            shape=list(tensor.shape),
            start=start,
            end=start + (extent * tensor.element_size() if tensor.numel() else 0),
        )
        self._records[weight.name] = record
        return record

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _COPIES:
            self._note_copy(args[0], args[1])
        elif func in _FILLS:
            self._note_write(args[0], None)
        return result

    def _note_copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        record = self._record_at(source.data_ptr())
        if self._note_write(target, record) and record is not None:
            for used in self._converted or (record,):
                used.is_used = True

    def _record_at(self, address: int) -> _Record | None:
        """The checkpoint tensor that holds `address`, else the one being loaded.

        The newest comes first: where memory was given back and used again, the newer tensor is
        the living one. A converted copy lies nowhere, hence the fallback.
        """
        if self._converted:
            return self._converted[0]
        if self._current is not None and self._current.holds(address):
            return self._current
        for record in reversed(self._records.values()):
            if record.holds(address):
                return record
        return self._current

    def _note_write(self, target: torch.Tensor, record: _Record | None) -> bool:
        """Note the elements of `target` as written; False if it is no part of the model."""
        storage = target.untyped_storage()
        address = storage.data_ptr()
        if address not in self._homes:
            self._find_homes()
            if address not in self._homes:
                return False
        writes = self._writes.setdefault(address, _Writes(storage))
        if record is None:
            writes.filled.append(_runs(target))
        else:
            writes.copied.append(_runs(target))
            writes.names.append(record.name)
        return True

    def _find_homes(self) -> None:
        """Note the model's storages; asked again when an unknown one is written.

        A loader may replace a parameter. The storages of replaced ones stay known (and held, so
        that their addresses stay theirs), as what was copied into them was used.
        """
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            storage = tensor.untyped_storage()
            self._homes.setdefault(storage.data_ptr(), storage)

    def ignore(self, name: str) -> None:
        """Take a checkpoint tensor as used: it is on a stated ignore list."""
        record = self._records.get(name)
        if record is not None:
            record.is_used = True

    @contextmanager
    def converted(self, names: Sequence[str]) -> Iterator[None]:
        """Take what is copied inside the block as made of these checkpoint tensors."""
        self._converted = tuple(self._records[name] for name in names)
        self._current = self._converted[0]
        try:
            yield
        finally:
            self._converted = ()

    def where(self, error: Exception) -> str:
        """The tensor and file that an error in the model's loader belongs to, or ""."""
        if self._is_reading:
            return ""  # The source failed, not the model; its message names the file.
        message = str(error)
        record = self._current or next(
            (r for r in self._records.values() if r.name in message), None
        )
        return f"{record}: " if record is not None else ""

    def check(self) -> None:
        """Compare what was written with what there is.

        Raises:
            ModelLoadError: a parameter is incomplete or written twice, or a tensor is unused.
        """
        faults: list[str] = []
        for name, param in self._model.named_parameters():
            faults += self._parameter_faults(name, param)
        unused = [str(r) for r in self._records.values() if not r.is_used]
        if unused:
            faults.append(
                "the checkpoint holds tensors that the model has no use for: " + _listing(unused)
            )
        if faults:
            raise ModelLoadError("checkpoint and model do not match: " + _listing(faults, "; "))

    def _parameter_faults(self, name: str, param: nn.Parameter) -> list[str]:
        shape = list(param.shape)
        if param.numel() == 0:
            return []
        writes = self._writes.get(param.untyped_storage().data_ptr())
        if writes is None:
            return [f"{name} is not in the checkpoint (expected shape {shape}{self._files()})"]
        expected = _merge([_runs(param.data)])[0]
        copied, overlap = _merge(_clip(writes.copied, expected))
        if overlap:
            return [f"{name} is written twice, by {_listing(sorted(set(writes.names)))}"]
        written = _merge([copied, *_clip(writes.filled, expected)])[0]
        missing = _size(expected) - _size(written)
        if missing:
            sources = _listing(writes.names) or "nothing"
            what = f"{missing} of {_size(expected)} elements are missing"
            return [f"{name} (shape {shape}): {what}; it got {sources}{self._files()}"]
        return []

    def _files(self) -> str:
        files = sorted({record.file for record in self._records.values()})
        return f"; looked for in {_listing(files)}" if files else ""


_active: ContextVar[LoadAccounting | None] = ContextVar("load_accounting", default=None)


def note_ignored(name: str) -> None:
    """State that a checkpoint tensor is left out on purpose; without accounting, nothing."""
    accounting = _active.get()
    if accounting is not None:
        accounting.ignore(name)


@contextmanager
def converted_from(names: Sequence[str]) -> Iterator[None]:
    """State that what is loaded inside the block was computed from these checkpoint tensors.

    Without accounting, nothing. A copy counts as a use of all of them.
    """
    accounting = _active.get()
    if accounting is None:
        yield
        return
    with accounting.converted(names):
        yield


def account_load(model: nn.Module, source: WeightSource, load: LoadFn) -> set[str]:
    """Run `load` over `source` and prove that it was complete.

    Args:
        model: whose parameters must be filled.
        source: the checkpoint's tensors.
        load: usually `model.load_weights`.

    Returns:
        What `load` returned: names of parameters.

    Raises:
        ModelLoadError: a tensor is unused, duplicate or of the wrong shape, or a parameter is
            missing, incomplete or written twice; names the tensor, its shape and its file.
    """
    if _active.get() is not None:
        raise RuntimeError("a load is already being accounted for: account_load nests")
    accounting = LoadAccounting(model)
    token = _active.set(accounting)
    try:
        with torch.no_grad(), accounting:
            written = load(accounting.stream(source))
    except (ModelLoadError, RuntimeError) as error:
        where = accounting.where(error)
        if not where:
            raise
        raise ModelLoadError(f"{where}{error}") from error
    finally:
        _active.reset(token)
    accounting.check()
    return written


def _listing(items: list[str], separator: str = ", ") -> str:
    more = len(items) - _MAX_NAMED
    return separator.join(items[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _runs(tensor: torch.Tensor) -> Runs:
    """Consecutive elements of `tensor` in its storage: int64 [n, 2], first and past-last.

    Offsets are in elements of the tensor's own type. A dimension folds into the run while it
    continues it; the others give one run per index.
    """
    if tensor.numel() == 0:
        return np.empty((0, 2), np.int64)
    length = 1
    starts = np.array([tensor.storage_offset()], np.int64)
    dims = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in dims:
        if size == 1:
            continue
        if stride == length and len(starts) == 1:
            length *= size
        else:
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return np.stack([starts, starts + length], axis=1)


def _merge(runs: list[Runs]) -> tuple[Runs, int]:
    """The union of runs, sorted, and how many elements are in more than one."""
    joined = np.concatenate(runs) if runs else np.empty((0, 2), np.int64)
    if len(joined) < 2:
        return joined, 0
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    reach = np.maximum.accumulate(joined[:, 1])
    is_first = np.concatenate([[True], joined[1:, 0] > reach[:-1]])
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(joined)) - 1
    union = np.stack([joined[firsts, 0], reach[lasts]], axis=1)
    return union, _size(joined) - _size(union)


def _clip(runs: list[Runs], bounds: Runs) -> list[Runs]:
    """The parts of runs between the first and the last element of `bounds`."""
    low, high = int(bounds[0, 0]), int(bounds[-1, 1])
    clipped = [np.clip(r, low, high) for r in runs]
    return [r[r[:, 0] < r[:, 1]] for r in clipped]


def _size(runs: Runs) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum())
