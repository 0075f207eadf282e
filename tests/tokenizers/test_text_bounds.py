# SPDX-License-Identifier: Apache-2.0
"""A text that cannot fit the context is refused before it is tokenized."""

import pytest

from vllm.exceptions import VLLMValidationError
from vllm.tokenizers.encoding import check_text_can_fit


class Vocabulary:
    """A tokenizer that can say its vocabulary and must not be asked for more."""

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "abcd": 1}


def test_the_longest_token_bounds_the_text():
    check_text_can_fit(Vocabulary(), 40, max_model_len=10)
    with pytest.raises(VLLMValidationError, match=r"41 characters.*at most 40"):
        check_text_can_fit(Vocabulary(), 41, max_model_len=10)
