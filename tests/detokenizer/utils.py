# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of every family, built without any file."""

from functools import lru_cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<|end|>")


def _wrap(backend: Tokenizer) -> Any:
    backend.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


@lru_cache
def byte_tokenizer() -> Any:
    """Every token is one byte, so that a character outside ASCII takes several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend)


@lru_cache
def spm_tokenizer() -> Any:
    """Llama-2 style: spaces as U+2581, single bytes as a fallback, first space stripped."""
    pieces = [f"<0x{i:02X}>" for i in range(256)]
    pieces += ["▁", "▁the", "▁a", "he", "llo", "▁hello", "é", "東", "x", ".", "a", "b"]
    vocab = {"<unk>": 0} | {p: i for i, p in enumerate(pieces, 1)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return _wrap(backend)


@lru_cache
def wordpiece_tokenizer() -> Any:
    """BERT style: spaces between words, none before `##` pieces."""
    pieces = ["[UNK]", "the", "##re", "quick", "##ly", "a", "##b", ".", ",", "n", "'", "é", "日"]
    backend = Tokenizer(
        models.WordPiece(vocab={p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _wrap(backend)


@lru_cache
def metaspace_tokenizer() -> Any:
    """Unigram style: spaces as U+2581 through the Metaspace decoder."""
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁the", -2.0), ("re", -2.0), ("a", -3.0), ("é", -3.0)]
    backend = Tokenizer(models.Unigram([*pieces, ("▁東", -4.0), ("x", -4.0)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _wrap(backend)


@lru_cache
def piece_tokenizer(*pieces: str) -> Any:
    """Each entry is a token, in the order given; texts are split by the entries."""
    backend = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token=pieces[0]))
    pattern = "|".join(sorted((p.replace(".", r"\.") for p in pieces), key=len, reverse=True))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return _wrap(backend)


TOKENIZERS = {
    "byte": byte_tokenizer,
    "spm": spm_tokenizer,
    "wordpiece": wordpiece_tokenizer,
    "metaspace": metaspace_tokenizer,
}
