# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from GGUF files cut text as the originals do."""

import itertools
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.conftest import TinyModel
from tests.model_executor.model_loader.gguf_files import (
    BYTE_TOKENS,
    SPECIAL,
    add_bpe_vocabulary,
)
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.tokenizers import get_tokenizer

TEXTS = [
    "Hello, world! 12345 don't",
    "naïve café 東京 🤗 здравствуй",
    "def f(x):\n    return x + 1\n\n\t# ok  ",
    "the hehe 3.14e-10",
    "",
    " ",
]


def write(path: Path, fill: Any, **flags: bool) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    for key, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def bpe(path: Path, pre: str = "smollm", **flags: bool) -> Path:
    return write(path, lambda w: add_bpe_vocabulary(w, 280, pre), **flags)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "default", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(pre: str, text: str, tmp_path: Path) -> None:
    tokenizer = get_tokenizer(bpe(tmp_path / "m.gguf", pre, add_bos_token=False))
    ids = tokenizer(text).input_ids
    assert tokenizer.is_fast and len(tokenizer) == 280
    assert tokenizer.decode(ids) == text


def test_smollm_cuts_digits_and_bytes_as_the_original(tmp_path: Path) -> None:
    tokenizer = get_tokenizer(bpe(tmp_path / "m.gguf"))
    vocab = {t: i for i, t in enumerate([*SPECIAL, *BYTE_TOKENS, "he"])}
    original = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e")]))
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    original.decoder = decoders.ByteLevel()
    for text in TEXTS:
        assert tokenizer(text).input_ids == original.encode(text).ids
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a 123")
    assert [piece for piece, _ in pieces] == ["a", "Ġ", "1", "2", "3"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("llama-bpe", ["ab", "Ġ", "123", "45", "'re", "!!", "ĊĊ", "x"]),
        ("qwen2", ["ab", "Ġ", "1", "2", "3", "4", "5", "'re", "!!", "ĊĊ", "x"]),
        ("gpt-2", ["ab", "Ġ12345", "'re", "!!", "Ċ", "Ċ", "x"]),
    ],
)
def test_words_are_cut_as_named(pre: str, pieces: list[str], tmp_path: Path) -> None:
    tokenizer = get_tokenizer(bpe(tmp_path / "m.gguf", pre))
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("ab 12345're!!\n\nx")
    got = [piece for piece, _ in cut]
    assert [p for p in got if p.strip("Ċ!")] == [p for p in pieces if p.strip("Ċ!")]


def test_special_tokens_are_single_ids(tmp_path: Path) -> None:
    tokenizer = get_tokenizer(bpe(tmp_path / "m.gguf"))
    ids = tokenizer("<|im_start|>he<|im_end|>").input_ids
    assert ids == [1, 3 + 256, 2]
    assert (tokenizer.bos_token, tokenizer.eos_token_id) == ("<|im_start|>", 2)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he"
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False) == "he"
    )


@pytest.mark.parametrize(
    ("pre", "flags", "bos"),
    [
        ("smollm", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
        ("smollm", {"add_bos_token": True}, True),
    ],
)
def test_begin_token_as_the_file_asks(
    pre: str, flags: dict[str, bool], bos: bool, tmp_path: Path
) -> None:
    tokenizer = get_tokenizer(bpe(tmp_path / "m.gguf", pre, **flags))
    assert (tokenizer("he").input_ids == [1, 259]) is bos
    assert tokenizer("he", add_special_tokens=False).input_ids == [259]


PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
WORDS = ["▁", "h", "e", "l", "o", "he", "ll", "▁he", "llo", "▁hello", "lo", "ello"]


def spm(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES + WORDS)
    writer.add_token_scores([0.0] * len(PIECES) + [-float(i) for i in range(len(WORDS))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(WORDS))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def best_pair_first(text: str) -> list[str]:
    """SentencePiece BPE as defined: join the neighbours whose union scores highest."""
    scores = {word: -i for i, word in enumerate(WORDS)}
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [a + b for a, b in itertools.pairwise(parts)]
        known = [(scores[u], -i) for i, u in enumerate(unions) if u in scores]
        if not known:
            return parts
        i = -max(known)[1]
        parts[i : i + 2] = [unions[i]]


@pytest.mark.parametrize("text", ["hello", "hell he lo", "ello ello", "ohell ll", "o"])
def test_sentencepiece_joins_the_best_pair_first(text: str, tmp_path: Path) -> None:
    tokenizer = get_tokenizer(write(tmp_path / "m.gguf", spm))
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *best_pair_first(text)]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_sentencepiece_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = get_tokenizer(write(tmp_path / "m.gguf", spm))
    ids = tokenizer("é").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "é"


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("pre", "klingon", "'klingon'.* is not supported; supported are default"),
        ("model", "bert", "tokenizer 'bert' is not supported"),
        ("tokens", ["a", "a"], "a token twice"),
        ("token_type", [1], "1 token types for 280 tokens"),
        ("merges", ["h zzz"], "the merge 'h zzz' does not fit"),
        ("eos_token_id", 999, "the eos token 999 is not in the vocabulary"),
        ("tokens", "abc", "is no list"),
    ],
)
def test_damaged_vocabulary_is_refused(
    key: str, value: Any, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.tokenizers.gguf_tokenizer import tokenizer_from_gguf
    from vllm.transformers_utils.gguf_utils import GGUFFile

    file = GGUFFile(bpe(tmp_path / "m.gguf"))
    file.metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises((ModelLoadError, ConfigError), match=error):
        tokenizer_from_gguf(file)


def test_folder_gives_its_fast_tokenizer(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    tokenizer = get_tokenizer(str(path))
    assert tokenizer.is_fast and tokenizer.bos_token == "<s>"
    assert get_tokenizer(path) is not tokenizer


def test_absent_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer can be made from"):
        get_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="no such file or folder"):
        get_tokenizer("./absent.gguf")
    with pytest.raises(ConfigError, match="tokenizer_mode='fastest' is not supported"):
        get_tokenizer(tmp_path, tokenizer_mode="fastest")
