# SPDX-License-Identifier: Apache-2.0
"""Wire types of /v1/models."""

from typing import Literal

from pydantic import BaseModel, Field


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "vllm"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard] = Field(default_factory=list)
