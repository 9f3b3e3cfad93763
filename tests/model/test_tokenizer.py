"""The tokenizer against transformers' (the bundled GGUF) and against the tokenizers library (directories)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from mixed_text import mixed_lines
from ridgeline.errors import CheckpointError, ConfigError, RequestError
from ridgeline.model.resolve import ModelFiles, resolve_model
from ridgeline.model.tokenizer import Tokenizer, load_tokenizer

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2-135m"))


@pytest.fixture(scope="module")
def transformers_smollm2() -> transformers.PreTrainedTokenizerFast:
    path = resolve_model("smollm2-135m").path
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


# transformers does not read `tokenizer.ggml.pre` and cuts words as GPT-2 does; SmolLM2 takes each digit alone first.
# The vocabulary has no merges with ASCII digits, so that only shows where a number is not ASCII, or follows two white
# spaces (GPT-2 leaves the last one to the number).
DIGITS_ALONE_SHOW = re.compile(r"\s\s\d|[²³½٣٤٥Ⅳ]")


class TestBundled:
    def test_ids_equal_transformers_where_it_cuts_words_as_smollm2_does(self, smollm2, transformers_smollm2):
        lines = mixed_lines(1000)
        equal = {line: smollm2.encode(line) == transformers_smollm2(line).input_ids for line in lines}
        assert all(equal[line] for line in lines if not DIGITS_ALONE_SHOW.search(line))
        assert 0 < list(equal.values()).count(False) < 400

    def test_ids_equal_transformers_with_smollm2_own_words(self, smollm2, transformers_smollm2):
        oracle = Backend.from_str(transformers_smollm2.backend_tokenizer.to_str())
        oracle.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        for line in mixed_lines(1000):
            assert smollm2.encode(line) == oracle.encode(line).ids

    def test_decode_inverts_encode(self, smollm2):
        for line in mixed_lines(1000, extra=CONTROL):
            assert smollm2.decode(smollm2.encode(line)) == line

    def test_control_text_is_parsed_only_when_asked(self, smollm2, transformers_smollm2):
        for line in mixed_lines(200, extra=CONTROL):
            line = DIGITS_ALONE_SHOW.sub("", line)
            assert smollm2.encode(line, control=True) == transformers_smollm2(line).input_ids
            assert not any(smollm2.is_control(i) for i in smollm2.encode(line))

    def test_what_the_file_declares(self, smollm2):
        assert smollm2.vocab_size == 49152
        assert smollm2.eos_token_ids == {2}
        assert (smollm2.bos_token_id, smollm2.adds_bos, smollm2.strips_leading_space) == (1, False, False)
        assert smollm2.encode("hi", bos=True) == smollm2.encode("hi")

    def test_tokens_as_bytes_and_text(self, smollm2):
        assert smollm2.token_bytes(2) == b""
        assert smollm2.token_text(2) == "<|im_end|>"
        first, *_ = smollm2.encode("👋")
        assert "👋".encode().startswith(smollm2.token_bytes(first))
        assert smollm2.token_text(first) == "\ufffd"
        assert smollm2.decode([1, *smollm2.encode("a"), 2]) == "a"
        assert smollm2.decode([1, *smollm2.encode("a"), 2], skip_special=False) == "<|im_start|>a<|im_end|>"

    @pytest.mark.parametrize("token_id", [-1, 49152])
    @pytest.mark.parametrize("method", ["token_bytes", "token_text", "is_control"])
    def test_an_id_out_of_range_is_refused_with_the_numbers(self, smollm2, token_id, method):
        with pytest.raises(RequestError, match=rf"{token_id} .*49,152") as caught:
            getattr(smollm2, method)(token_id)
        assert caught.value.details == {"token_id": token_id, "vocab_size": 49152}


def byte_level_backend(**special: bool) -> Backend:
    """A small byte-level BPE whose added tokens are `special` or not."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(mixed_lines(50), trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    backend.add_tokens([AddedToken(text, special=flag, normalized=False) for text, flag in special.items()])
    return backend


def save(directory: Path, backend: Backend, **configs: dict) -> ModelFiles:
    backend.save(str(directory / "tokenizer.json"))
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config))
    return ModelFiles("tiny", "directory", directory)


SPECIAL = {"<|end|>": True, "<|im_end|>": True, "<tool_call>": False}


class TestDirectory:
    def test_normal_added_tokens_are_parsed_and_control_tokens_are_not(self, tmp_path):
        backend = byte_level_backend(**SPECIAL)
        tokenizer = load_tokenizer(save(tmp_path, backend))
        tool_call = backend.token_to_id("<tool_call>")
        for line in mixed_lines(200, extra=tuple(SPECIAL)):
            ids = tokenizer.encode(line)
            assert tokenizer.encode(line, control=True) == backend.encode(line).ids
            assert ids.count(tool_call) == line.count("<tool_call>")
            assert not any(tokenizer.is_control(i) for i in ids)
            assert tokenizer.decode(ids) == line
        assert tokenizer.token_bytes(tool_call) == b"<tool_call>"

    def test_end_tokens_are_the_union_of_all_files(self, tmp_path):
        backend = byte_level_backend(**SPECIAL)
        tokenizer = load_tokenizer(
            save(
                tmp_path,
                backend,
                config={"eos_token_id": 5},
                generation_config={"eos_token_id": [6, 7]},
                tokenizer_config={"eos_token": {"content": "<|end|>"}, "chat_template": "{{ '<|im_end|>' }}"},
            )
        )
        assert tokenizer.eos_token_ids == {5, 6, 7, backend.token_to_id("<|end|>"), backend.token_to_id("<|im_end|>")}

    def test_a_turn_end_that_no_template_writes_ends_nothing(self, tmp_path):
        files = save(tmp_path, byte_level_backend(**SPECIAL), tokenizer_config={"chat_template": "{{ 1 }}"})
        assert load_tokenizer(files).eos_token_ids == frozenset()

    def test_padding_rows_of_the_model_are_tokens_without_text(self, tmp_path):
        backend = byte_level_backend()
        tokenizer = load_tokenizer(save(tmp_path, backend, config={"vocab_size": 512}))
        assert tokenizer.vocab_size == 512
        assert tokenizer.token_bytes(511) == b""
        assert not tokenizer.is_control(511)

    @pytest.mark.parametrize(
        ("declared", "post_processor", "adds"),
        [(None, False, False), (None, True, True), (False, True, False), (True, False, True)],
    )
    def test_bos_comes_once_as_the_files_say(self, tmp_path, declared, post_processor, adds):
        backend = byte_level_backend(**{"<s>": True})
        bos = backend.token_to_id("<s>")
        if post_processor:
            backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
        config = {"bos_token": "<s>"} | ({} if declared is None else {"add_bos_token": declared})
        tokenizer = load_tokenizer(save(tmp_path, backend, tokenizer_config=config))
        assert tokenizer.adds_bos == adds
        assert tokenizer.encode("a", bos=True).count(bos) == adds
        assert tokenizer.encode("<s>a", control=True, bos=True).count(bos) == 1
        assert tokenizer.encode("a").count(bos) == 0

    def test_tokens_that_only_the_config_declares_are_added(self, tmp_path):
        backend = byte_level_backend()
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        size = backend.get_vocab_size()
        config = {"added_tokens_decoder": {str(size): {"content": "<new>", **flags}}}
        tokenizer = load_tokenizer(save(tmp_path, backend, tokenizer_config=config))
        assert tokenizer.encode("<new>", control=True) == [size]
        config = {"added_tokens_decoder": {str(size + 7): {"content": "<new>", **flags}}}
        with pytest.raises(CheckpointError, match=f"no token {size + 7}"):
            load_tokenizer(save(tmp_path, backend, tokenizer_config=config))

    def test_white_space_beside_control_tokens_goes_as_declared(self, tmp_path):
        backend = byte_level_backend()
        backend.add_tokens([AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True)])
        tokenizer = load_tokenizer(save(tmp_path, backend))
        for line in mixed_lines(200, extra=("<l>", "<r>", " ")):
            assert tokenizer.encode(line, control=True) == backend.encode(line).ids


def sentencepiece_backend(merges: list[tuple[str, str]]) -> Backend:
    letters = ["<unk>", "<s>", "</s>", *"▁<>/sab", *("".join(merge) for merge in merges)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(letters))}
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return backend


class TestSentencepieceDirectory:
    def test_merges_that_spell_a_control_token_do_not_make_one(self, tmp_path):
        backend = sentencepiece_backend([("s", ">"), ("<", "s>"), ("<", "/"), ("</", "s>")])
        backend.encode_special_tokens = True
        assert backend.encode("</s>").tokens == ["</s>"]  # the library alone does make one
        tokenizer = load_tokenizer(save(tmp_path, backend))
        ids = tokenizer.encode("a</s><s>b")
        assert not any(tokenizer.is_control(i) for i in ids)
        assert tokenizer.decode(ids) == "a</s><s>b"

    @pytest.mark.parametrize("scheme", ["first", "always", "never"])
    def test_the_space_before_a_text_comes_as_declared(self, tmp_path, scheme):
        backend = sentencepiece_backend([("▁", "a"), ("▁", "b")])
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
        tokenizer = load_tokenizer(save(tmp_path, backend))
        for text in ("a b", "<s>a b", "<s>a</s>b</s> a", "b<s>a"):
            assert tokenizer.encode(text, control=True) == backend.encode(text).ids
        assert tokenizer.strips_leading_space == (scheme != "never")
        assert tokenizer.decode(tokenizer.encode("a b")) == "a b"

    def test_a_prepended_space_is_stripped_again(self, tmp_path):
        backend = sentencepiece_backend([("▁", "a")])
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer = load_tokenizer(save(tmp_path, backend))
        assert tokenizer.encode("a a") == backend.encode("a a").ids
        assert tokenizer.decode(tokenizer.encode(" a a")) == " a a"


class TestFaults:
    def test_no_tokenizer_at_all(self, tmp_path):
        assert load_tokenizer(ModelFiles("tiny", "directory", tmp_path)) is None
        assert load_tokenizer(ModelFiles("tiny", "config", tmp_path / "config.json")) is None

    def test_a_format_that_is_not_read_says_how_to_go_on(self, tmp_path):
        (tmp_path / "tokenizer.model").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"tokenizer\.model but no tokenizer\.json.*save_pretrained"):
            load_tokenizer(ModelFiles("tiny", "directory", tmp_path))

    @pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "BPE"}}'])
    def test_a_damaged_file_is_named(self, tmp_path, content):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises((CheckpointError, ConfigError), match=r"tokenizer\.json: "):
            load_tokenizer(ModelFiles("tiny", "directory", tmp_path))

    def test_other_models_are_refused_by_name(self, tmp_path):
        with pytest.raises(ConfigError, match="'Unigram'"):
            load_tokenizer(save(tmp_path, Backend(models.Unigram([("a", 0.0)]))))
        backend = byte_level_backend()
        backend.decoder = decoders.WordPiece()
        with pytest.raises(ConfigError, match="WordPiece"):
            load_tokenizer(save(tmp_path, backend))
