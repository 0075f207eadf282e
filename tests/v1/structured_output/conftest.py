# SPDX-License-Identifier: Apache-2.0
"""One tokenizer and one manager for all tests that do not change them."""

import pytest
from transformers import PreTrainedTokenizerFast

from tests.v1.structured_output.grammars import make_manager, make_tokenizer
from vllm.v1.structured_output import StructuredOutputManager


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def manager(tokenizer: PreTrainedTokenizerFast) -> StructuredOutputManager:
    return make_manager(tokenizer)
