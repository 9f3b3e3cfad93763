"""GGUF vocabularies: word rules against transformers' own, SentencePiece against the sentencepiece library."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import TikTokenConverter

from mixed_text import mixed_lines
from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.gguf_vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, from_gguf
from ridgeline.model.tokenizer import Tokenizer


def load(metadata: dict[str, Any], templates: dict[str, str] | None = None) -> Tokenizer:
    return Tokenizer(from_gguf(metadata, templates or {}, source="tiny.gguf"))


def words_of_transformers(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre == "qwen2":
        return transformers.Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    if pre == "llama-bpe":
        split = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]) if pre == "smollm" else gpt2


def trained(pre: str) -> Backend:
    """A small byte-level BPE with a family's words, as it stands in tokenizer.json."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = words_of_transformers(pre)
    if pre == "qwen2":
        backend.normalizer = transformers.Qwen2Tokenizer().backend_tokenizer.normalizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|eot_id|>"],
        show_progress=False,
    )
    backend.train_from_iterator(mixed_lines(300, seed=1), trainer)
    return backend


def byte_level_metadata(backend: Backend, pre: str, **more: Any) -> dict[str, Any]:
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) for pair in model["merges"]]
    values = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges,
        "token_type": [CONTROL if token.startswith("<|e") else NORMAL for token in tokens],
        "eos_token_id": 0, "eot_token_id": 1,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()}


class TestByteLevel:
    @pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
    def test_ids_equal_those_of_the_family(self, pre):
        backend = trained(pre)
        tokenizer = load(byte_level_metadata(backend, pre))
        for line in mixed_lines(1000, seed=2):
            ids = tokenizer.encode(line)
            assert ids == backend.encode(line).ids
            assert tokenizer.decode(ids) == backend.decode(ids)
            assert pre == "qwen2" or tokenizer.decode(ids) == line

    @pytest.mark.parametrize(
        ("pre", "words"),
        [
            ("gpt-2", ["it", "'s", " 12345", "'", "LL", " ", " x"]),
            ("smollm", ["it", "'s", " ", "1", "2", "3", "4", "5", "'", "LL", " ", " x"]),
            ("qwen2", ["it", "'s", " ", "1", "2", "3", "4", "5", "'LL", " ", " x"]),
            ("llama-bpe", ["it", "'s", " ", "123", "45", "'LL", " ", " x"]),
        ],
    )
    def test_words(self, pre, words):
        """With a token for every part of the text, a token is a whole word."""
        text = "it's 12345'LL  x"
        spelled = text.replace(" ", "Ġ")
        parts = {spelled[start:end] for start in range(len(text)) for end in range(start + 1, len(text) + 1)}
        tokens = sorted(parts, key=lambda part: (len(part), part))
        values = {
            "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [NORMAL] * len(tokens),
            "merges": [f"{part[:cut]} {part[cut:]}" for part in tokens for cut in range(1, len(part))],
        }  # fmt: skip
        tokenizer = load({f"tokenizer.ggml.{key}": value for key, value in values.items()})
        assert [tokenizer.token_text(i) for i in tokenizer.encode(text)] == words

    def test_qwen2_normalizes_to_nfc(self):
        tokenizer = load(byte_level_metadata(trained("qwen2"), "qwen2"))
        assert tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9"

    def test_llama3_takes_whole_words_that_no_merge_makes(self):
        values = {"model": "gpt2", "tokens": ["a", "b", "ab"], "merges": [], "token_type": [NORMAL] * 3}
        metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        assert load(metadata | {"tokenizer.ggml.pre": "llama-bpe"}).encode("ab") == [2]
        assert load(metadata | {"tokenizer.ggml.pre": "gpt-2"}).encode("ab") == [0, 1]

    def test_end_and_begin_tokens(self):
        metadata = byte_level_metadata(trained("gpt-2"), "llama-bpe", bos_token_id=0)
        del metadata["tokenizer.ggml.eot_token_id"]
        assert load(metadata).eos_token_ids == {0}
        assert load(metadata, {"default": "{{ '<|eot_id|>' }}"}).eos_token_ids == {0, 1}
        assert load(metadata | {"tokenizer.ggml.eot_token_id": 5}).eos_token_ids == {0, 5}
        assert load(metadata).adds_bos  # llama-bpe does unless the file says otherwise
        assert not load(metadata | {"tokenizer.ggml.add_bos_token": False}).adds_bos
        assert not load(metadata | {"tokenizer.ggml.pre": "gpt-2"}).adds_bos

    def test_user_defined_tokens_are_parsed_in_text_and_unused_ones_never(self):
        metadata = byte_level_metadata(trained("gpt-2"), "gpt-2")
        size = len(metadata["tokenizer.ggml.tokens"])
        metadata["tokenizer.ggml.tokens"] += ["<think>", "[PAD]"]
        metadata["tokenizer.ggml.token_type"] += [USER_DEFINED, UNUSED]
        tokenizer = load(metadata)
        assert tokenizer.encode("<think>") == [size]
        assert tokenizer.token_bytes(size) == b"<think>"
        assert size + 1 not in tokenizer.encode("[PAD]", control=True)
        assert tokenizer.token_bytes(size + 1) == b""
        assert tokenizer.vocab_size == size + 2


class TestSentencepiece:
    @pytest.mark.parametrize("adds_space", [True, False])
    def test_ids_equal_sentencepiece(self, adds_space):
        processor = trained_sentencepiece(adds_space)
        tokenizer = load(sentencepiece_metadata(processor, adds_space))
        lines = mixed_lines(1000, seed=3)
        assert [tokenizer.encode(line) for line in lines] == [processor.encode(line) for line in lines]
        assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines

    def test_control_tokens_and_bytes(self):
        processor = trained_sentencepiece(True)
        tokenizer = load(sentencepiece_metadata(processor, True))
        assert tokenizer.encode("</s><s>") == processor.encode("</s><s>")
        assert tokenizer.encode("</s>", control=True, bos=True) == [1, 2]
        newline = processor.piece_to_id("<0x0A>")
        assert tokenizer.token_bytes(newline) == b"\n"
        assert newline not in tokenizer.encode("<0x0A>")
        assert tokenizer.is_control(processor.unk_id())
        assert tokenizer.adds_bos

    def test_user_defined_symbols(self):
        processor = trained_sentencepiece(True)
        tokenizer = load(sentencepiece_metadata(processor, True))
        symbol = processor.piece_to_id("<sep>")
        assert processor.encode("a<sep>b").count(symbol) == 1
        assert tokenizer.encode("a<sep>b").count(symbol) == 1
        assert tokenizer.decode(tokenizer.encode("a<sep>b")).replace(" ", "") == "a<sep>b"


def trained_sentencepiece(adds_space: bool) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line.replace("\n", " ") for line in mixed_lines(400, seed=4)),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        character_coverage=0.98,
        byte_fallback=True,
        split_digits=True,
        user_defined_symbols=["<sep>"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=adds_space,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(processor: sentencepiece.SentencePieceProcessor, adds_space: bool) -> dict[str, Any]:
    ids = range(processor.get_piece_size())

    def kind(i: int) -> int:
        if processor.is_unknown(i) or processor.is_control(i):
            return UNKNOWN if processor.is_unknown(i) else CONTROL
        if processor.is_byte(i):
            return BYTE
        return USER_DEFINED if processor.id_to_piece(i) == "<sep>" else NORMAL

    values = {
        "model": "llama", "tokens": [processor.id_to_piece(i) for i in ids],
        "scores": [processor.get_score(i) for i in ids], "token_type": [kind(i) for i in ids],
        "bos_token_id": processor.bos_id(), "eos_token_id": processor.eos_id(),
        "unknown_token_id": processor.unk_id(), "add_space_prefix": adds_space,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


class TestFaults:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"pre": "qwen22"}, ConfigError, "pre-tokenizer 'qwen22' is not supported .*'qwen2'"),
            ({"pre": None}, ConfigError, "does not name its pre-tokenizer"),
            ({"model": "bert"}, ConfigError, "tokenizer model 'bert' is not supported"),
            ({"merges": None}, CheckpointError, r"has no tokenizer\.ggml\.merges"),
            ({"merges": ["a c"]}, CheckpointError, "do not fit together"),
            ({"token_type": [NORMAL]}, CheckpointError, "3 tokens but 1 token types"),
            ({"eos_token_id": 3}, CheckpointError, "eos token 3 is outside the vocabulary of 3"),
            ({"model": "llama", "scores": [0.0]}, CheckpointError, "3 tokens but 1 scores"),
        ],
    )
    def test_a_fault_is_named(self, change, error, message):
        values = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "token_type": [NORMAL] * 3}
        metadata = {f"tokenizer.ggml.{key}": value for key, value in (values | {"merges": ["a b"]} | change).items()}
        with pytest.raises(error, match=rf"tiny\.gguf: .*{message}"):
            load(metadata)

    def test_no_vocabulary(self):
        assert from_gguf({}, {}, source="tiny.gguf") is None
