# SPDX-License-Identifier: Apache-2.0
"""The tiny models are what other tests take them for."""

import json

from tests.conftest import TinyModel
from tests.utils import SPECIAL_TOKENS, VOCAB_SIZE, hf_logprobs, random_token_ids


def test_tokenizer_represents_every_byte_and_round_trips(tiny_model: TinyModel) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    assert len(tokenizer) <= VOCAB_SIZE
    text = "".join(map(chr, range(1, 0x2100))) + "\U0001f600 東京"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id == 0 and ids.count(0) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(6))


def test_chat_template_begins_once(tiny_model: TinyModel) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<s><|user|>hi<|end|><|assistant|>"


def test_same_seed_same_model_and_sharding_changes_nothing(tiny_model: TinyModel) -> None:
    ids = random_token_ids(6)
    plain, sharded = tiny_model("llama"), tiny_model("llama", sharded=True)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    assert index["weight_map"]
    assert hf_logprobs(plain, ids).equal(hf_logprobs(sharded, ids))
    assert not hf_logprobs(plain, ids).equal(hf_logprobs(tiny_model("llama", seed=1), ids))
