# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model: from a folder, a hub id or a GGUF file.

Nothing is cached here and nothing is changed in the tokenizer: two calls give two objects.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ConfigError
from vllm.tokenizers.gguf_tokenizer import tokenizer_from_gguf
from vllm.transformers_utils.gguf_utils import GGUFFile, is_gguf
from vllm.transformers_utils.repo_utils import fetch, local_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_MODES = ("auto", "hf", "slow")


def get_tokenizer(
    name_or_path: str | Path,
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    **kwargs: Any,
) -> "PreTrainedTokenizerBase":
    """A Hugging Face tokenizer; a fast one where there is one.

    Args:
        name_or_path: a folder, a hub id, or a .gguf file.
        tokenizer_mode: "auto" and "hf" prefer the fast tokenizer, "slow" the other.
        trust_remote_code: consent to run code that comes with the tokenizer.
        revision: branch, tag or commit of a hub id.
        **kwargs: for the tokenizer's own `from_pretrained`; `download_dir` is the cache folder.

    Raises:
        ConfigError: there is no tokenizer, it cannot be read, or it needs code to be run.
        ModelLoadError: the GGUF file is damaged.
    """
    if tokenizer_mode not in TOKENIZER_MODES:
        raise ConfigError(
            f"tokenizer_mode={tokenizer_mode!r} is not supported; pass one of "
            + ", ".join(TOKENIZER_MODES)
        )
    download_dir = kwargs.pop("download_dir", None)
    path = local_path(str(name_or_path))
    if path is None:
        path = fetch(str(name_or_path), revision, "dummy", download_dir=download_dir)
    path = _lone_gguf(path)
    if is_gguf(path):
        if tokenizer_mode == "slow" or kwargs:
            raise ConfigError(
                f"{path.name}: a GGUF file's tokenizer is always fast and takes no options "
                f"(tokenizer_mode={tokenizer_mode!r}, options {sorted(kwargs)})"
            )
        return tokenizer_from_gguf(GGUFFile(path))
    return _from_folder(path, tokenizer_mode, trust_remote_code, revision, kwargs)


def _lone_gguf(path: Path) -> Path:
    """The GGUF file of a folder that holds nothing else of use, else `path`."""
    if not path.is_dir() or any(path.glob("tokenizer*")) or (path / "vocab.json").exists():
        return path
    files = [p for p in path.iterdir() if is_gguf(p)]
    return files[0] if len(files) == 1 else path


def _from_folder(
    path: Path,
    tokenizer_mode: str,
    trust_remote_code: bool,
    revision: str | None,
    options: dict[str, Any],
) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            path,
            use_fast=tokenizer_mode != "slow",
            trust_remote_code=trust_remote_code,
            code_revision=revision,
            local_files_only=True,
            **options,
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        hint = (
            "; pass trust_remote_code only if you trust its authors"
            if "trust_remote_code" in str(error)
            else "; the folder needs tokenizer.json or the files of its tokenizer's class"
        )
        summary = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"no tokenizer can be made from {path.name}: {summary}{hint}") from error
