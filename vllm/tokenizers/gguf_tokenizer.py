# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face fast tokenizer from the vocabulary of a GGUF file.

Two kinds exist: "gpt2", byte-level BPE with a named way to cut text into words, and "llama",
SentencePiece BPE, whose merges are found again from the scores of its pieces. A way to cut that is
not in the table is refused: another one would give other tokens without any error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from vllm.exceptions import ConfigError, ModelLoadError
from vllm.logger import init_logger
from vllm.transformers_utils.gguf_utils import GGUFFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = init_logger(__name__)

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"  # how SentencePiece writes a space

# How words are cut, with up to one or three digits a word.
_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One entry of the table.

    Attributes:
        make: cuts text and turns it into the byte alphabet.
        adds_bos: whether a begin token is set in front if the file does not say.
        ignores_merges: whether a word that is in the vocabulary is taken whole.
        normalizer: applied first.
    """

    make: Callable[[], Any]
    adds_bos: bool = False
    ignores_merges: bool = False
    normalizer: Callable[[], Any] | None = None


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _cut(digits: str) -> Callable[[], Any]:
    def make() -> Any:
        cut = pre_tokenizers.Split(Regex(_CUT % digits), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([cut, bytes_only])

    return make


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(_byte_level),
    "gpt-2": PreTokenizer(_byte_level),
    "llama-bpe": PreTokenizer(_cut(r"\p{N}{1,3}"), adds_bos=True, ignores_merges=True),
    "qwen2": PreTokenizer(_cut(r"\p{N}"), normalizer=normalizers.NFC),
    "smollm": PreTokenizer(_single_digits),
}


class _Vocabulary:
    """The tokenizer's part of the metadata, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.tokens: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int, optional=True)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise self.fail("the vocabulary holds a token twice")
        if self.types and len(self.types) != len(self.tokens):
            raise self.fail(f"{len(self.types)} token types for {len(self.tokens)} tokens")

    def fail(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file.path.name}: {what}")

    def _list(self, key: str, kind: type, *, optional: bool = False) -> list[Any]:
        values = self.file.get(f"tokenizer.ggml.{key}", list, [] if optional else ...)
        if not all(type(value) is kind for value in values):
            raise self.fail(f"tokenizer.ggml.{key} is no list of {kind.__name__}")
        return list(values)

    def merges(self) -> list[tuple[str, str]]:
        """The merges of a byte-level vocabulary, in order."""
        pairs = [merge.split(" ") for merge in self._list("merges", str)]
        for pair in pairs:
            if len(pair) != 2 or not all(p in self.ids for p in (*pair, "".join(pair))):
                raise self.fail(f"the merge {' '.join(pair)!r:.80} does not fit the vocabulary")
        return [(left, right) for left, right in pairs]

    def scores(self) -> list[float]:
        """One score per piece of a SentencePiece vocabulary."""
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise self.fail(f"{len(scores)} scores for {len(self.tokens)} tokens")
        return scores

    def flag(self, key: str, default: bool) -> bool:
        """A switch of the tokenizer."""
        return bool(self.file.get(f"tokenizer.ggml.{key}", bool, default))

    def special(self, name: str) -> str | None:
        """The token that plays a role ("bos", "eos", "unknown", "padding")."""
        token_id: int | None = self.file.get(f"tokenizer.ggml.{name}_token_id", int, None)
        if token_id is None:
            return None
        if token_id >= len(self.tokens):
            raise self.fail(f"the {name} token {token_id} is not in the vocabulary")
        return self.tokens[token_id]

    def added(self) -> list[AddedToken]:
        """Tokens that are found in text before it is cut."""
        return [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=False)
            if kind in (_CONTROL, _USER_DEFINED)
        ]


def tokenizer_from_gguf(file: GGUFFile) -> "PreTrainedTokenizerBase":
    """The tokenizer of a GGUF file, with the file's chat template.

    Raises:
        ConfigError: the kind of tokenizer, or its way to cut words, is not supported.
        ModelLoadError: the vocabulary is damaged.
    """
    from transformers import PreTrainedTokenizerFast

    kind = file.get("tokenizer.ggml.model", str)
    makers = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if kind not in makers:
        raise ConfigError(
            f"{file.path.name}: tokenizer {kind!r} is not supported; supported are "
            f"{', '.join(makers)}. Pass --tokenizer with a folder or hub id instead"
        )
    vocabulary = _Vocabulary(file)
    tokenizer, adds_bos = makers[kind](vocabulary)
    tokenizer.add_tokens(vocabulary.added())
    _add_ends(tokenizer, vocabulary, adds_bos)
    special = {
        f"{role}_token": vocabulary.special(name)
        for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    context_length = file.metadata.get(f"{file.architecture}.context_length")
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **({"model_max_length": context_length} if context_length else {}),
        **{role: token for role, token in special.items() if token is not None},
    )
    made.chat_template = file.get("tokenizer.chat_template", str, None)
    if len(made) != len(vocabulary.tokens):
        raise vocabulary.fail("a special token is not in the vocabulary")
    return made


def _byte_level_bpe(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    file = vocabulary.file
    name = file.get("tokenizer.ggml.pre", str, "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise ConfigError(
            f"{file.path.name}: the way to cut words {name!r} (tokenizer.ggml.pre) is not "
            f"supported; supported are {', '.join(PRE_TOKENIZERS)}. Pass --tokenizer with a "
            "folder or hub id instead"
        )
    if name == "default":
        logger.warning(
            "%s does not name its pre-tokenizer; GPT-2's is taken. Compare its tokens with the "
            "original tokenizer's, or pass --tokenizer",
            file.path.name,
        )
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids, merges=vocabulary.merges(), ignore_merges=pre.ignores_merges
        )
    )
    if pre.normalizer is not None:
        tokenizer.normalizer = pre.normalizer()
    tokenizer.pre_tokenizer = pre.make()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.adds_bos


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_from_scores(vocabulary.tokens, vocabulary.ids, vocabulary.scores()),
            unk_token=vocabulary.special("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = vocabulary.flag("add_space_prefix", True)
    steps = [normalizers.Prepend(_SPACE)] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    ends = [decoders.Strip(content=" ", left=1, right=0)] if adds_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    return tokenizer, True


def _merges_from_scores(
    tokens: list[str], ids: dict[str, int], scores: list[float]
) -> list[tuple[str, str]]:
    """All ways to join two pieces into a third, the best piece first.

    SentencePiece joins the neighbours whose union has the highest score, which is what a ranked
    list of merges does, too.
    """
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-score, left, right))
    merges.sort()
    return [(tokens[left], tokens[right]) for _, left, right in merges]


def _add_ends(tokenizer: Tokenizer, vocabulary: _Vocabulary, adds_bos: bool) -> None:
    """Set the begin and end token around plain text, as the file asks."""
    bos = vocabulary.special("bos") if vocabulary.flag("add_bos_token", adds_bos) else None
    eos = vocabulary.special("eos") if vocabulary.flag("add_eos_token", False) else None
    if bos is None and eos is None:
        return
    parts = [p for p in (bos, "$A", eos) if p is not None]
    second = [p if p != "$A" else "$B" for p in parts]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=parts,
        pair=parts + second,
        special_tokens=[(t, vocabulary.ids[t]) for t in {bos, eos} if t is not None],
    )
