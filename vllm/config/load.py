# SPDX-License-Identifier: Apache-2.0
"""Where weights come from."""

from dataclasses import dataclass
from typing import Literal

from vllm.exceptions import ConfigError

LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Weight loading.

    Attributes:
        load_format: "auto" decides by the files found; "dummy" draws random weights.
        download_dir: folder for files from the hub; None is the hub's own cache.
    """

    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    download_dir: str | None = None

    def __post_init__(self) -> None:
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(
                f"load_format={self.load_format!r} is not supported; pass one of "
                + ", ".join(LOAD_FORMATS)
            )
