"""Files beside the weights, with a value of the wrong type in them: loaded or refused by name, never a crash."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model.chat_template import load_chat_template
from ridgeline.model.generation import generation_defaults, unread_settings
from ridgeline.model.resolve import ModelFiles
from ridgeline.model.tokenizer import load_tokenizer

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
CONFIGS: dict[str, Any] = {
    "tokenizer_config.json": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", **FLAGS},
        "pad_token": None,
        "add_bos_token": True,
        "added_tokens_decoder": {"0": {"content": "<s>", **FLAGS, "special": True}, "7": {"content": "<new>", **FLAGS}},
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
    },
    "special_tokens_map.json": {"unk_token": "<s>", "eos_token": {"content": "</s>"}},
    "generation_config.json": {
        "do_sample": True, "eos_token_id": [1, 2], "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1,
        "repetition_penalty": 1.1, "no_repeat_ngram_size": 0,
    },
    "config.json": {"vocab_size": 9, "eos_token_id": 1},
    "chat_template.json": {"chat_template": "{{ 1 }}"},
}  # fmt: skip


def byte_level() -> Backend:
    backend = Backend(models.BPE({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "Ġ": 5, "c": 6}, [("a", "b")]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(False)])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<new>", normalized=False)])
    return backend


def sentencepiece() -> Backend:
    backend = Backend(models.BPE({"<s>": 0, "</s>": 1, "▁": 2, "a": 3, "▁a": 4, "b": 5, "c": 6}, [("▁", "a")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<new>", normalized=False)])
    return backend


GGUF = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["<s>", "a", "b", "ab"], "tokenizer.ggml.token_type": [3, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ 1 }}",
    "tokenizer.chat_template.rag": "{{ 2 }}", "tokenizer.chat_templates": ["rag"],
    "general.sampling.temp": 0.5, "general.sampling.top_k": 3, "general.sampling.penalty_last_n": 64,
}  # fmt: skip
GGUF_SENTENCEPIECE = GGUF | {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0],
    "tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.unknown_token_id": 0,
}  # fmt: skip

OTHERS = [
    None, True, False, 0, -1, 1, 3.5, 10**12, float("nan"), float("inf"), "", "x", "a b", "</s>", "\ud800", "ByteLevel",
    [], [None], [1], ["a"], [["a", "b"]], [[]], {}, {"a": 1}, {"type": "Sequence"}, {"content": 1},
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path to each value inside, and to the whole."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, item in inside for rest in places(item))]


def with_other(value: Any, place: tuple[Any, ...], other: Any, remove: bool) -> Any:
    if not place:
        return other
    value = copy.deepcopy(value)
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    if remove:
        del holder[place[-1]]
    else:
        holder[place[-1]] = other
    return value


def load_all(files: Any) -> None:
    """All that reads these files, and a first use of it."""
    tokenizer = load_tokenizer(files)
    generation_defaults(files)
    unread_settings(files)
    if tokenizer is not None:
        template = load_chat_template(files, tokenizer)
        tokenizer.decode(tokenizer.encode("ab c<new>", control=True, bos=True))
        if template is not None:
            template.encode([{"role": "user", "content": "ab"}])


def refused(files: Any) -> str | None:
    """What loading says against these files, if anything. Any other exception is a fault of ours."""
    try:
        load_all(files)
    except (CheckpointError, ConfigError) as error:
        return str(error)
    return None


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def checkpoint(request, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    contents = {**CONFIGS, "tokenizer.json": json.loads(request.param().to_str())}
    return tmp_path_factory.mktemp("files"), contents


def write(directory: Path, contents: dict[str, Any]) -> ModelFiles:
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content))
    return ModelFiles("tiny", "directory", directory)


def test_the_files_are_well_formed(checkpoint):
    load_all(write(*checkpoint))


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_value_of_another_type_is_loaded_or_refused(checkpoint, data):
    directory, contents = checkpoint
    name = data.draw(st.sampled_from(sorted(contents)))
    place = data.draw(st.sampled_from(places(contents[name])))
    changed = with_other(contents[name], place, data.draw(st.sampled_from(OTHERS)), data.draw(st.booleans()))
    files = write(directory, {**contents, name: changed})
    refusal = refused(files)
    assert refusal is None or str(directory) in refusal


@settings(max_examples=300, deadline=None)
@given(data=st.data(), metadata=st.sampled_from([GGUF, GGUF_SENTENCEPIECE]))
def test_any_value_of_another_type_in_gguf_metadata_is_loaded_or_refused(data, metadata):
    place = data.draw(st.sampled_from(places(metadata)[1:]))
    others = [other for other in OTHERS if other != "\ud800"]  # a file's strings are UTF-8
    changed = with_other(metadata, place, data.draw(st.sampled_from(others)), data.draw(st.booleans()))
    refusal = refused(SimpleNamespace(kind="gguf", path=Path("m.gguf"), gguf=SimpleNamespace(metadata=changed)))
    assert refusal is None or "m.gguf" in refusal


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "tokenizer_config.json",
            {"chat_template": {"default": "x"}},
            r"chat_template is \{'default': 'x'\}, not a string",
        ),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, r"chat_template\[0\]\.template is missing"),
        ("tokenizer_config.json", {"chat_template": ["a"]}, r"chat_template\[0\] is 'a', not an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, r"added_tokens_decoder\.x is not the id"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": "<s>"}},
            r"added_tokens_decoder\.0 is '<s>', not an obj",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": {"content": "<s>", "special": 1}}},
            r"0\.special is 1",
        ),
        ("tokenizer_config.json", {"bos_token": 5}, "bos_token is 5, not a string"),
        ("tokenizer_config.json", {"add_bos_token": "yes"}, "add_bos_token is 'yes', not true or false"),
        ("special_tokens_map.json", {"eos_token": {"content": 1}}, r"eos_token\.content is 1, not a string"),
        ("generation_config.json", {"temperature": "hot"}, "temperature is 'hot', not a number"),
        ("generation_config.json", {"do_sample": 0}, "do_sample is 0, not true or false"),
        ("generation_config.json", {"eos_token_id": ["</s>"]}, "eos_token_id holds '</s>', not a token id"),
        ("config.json", {"vocab_size": "9"}, "vocab_size is '9', not a number"),
        ("tokenizer.json", {"added_tokens": [1]}, r"added_tokens\[0\] is 1, not an object"),
        ("tokenizer.json", {"model": []}, r"model is \[\], not an object"),
        ("tokenizer.json", {"decoder": 3}, "cannot be loaded"),
    ],
)
def test_a_refusal_names_file_key_value_and_what_to_do(checkpoint, tmp_path, name, change, message):
    _, contents = checkpoint
    with pytest.raises(CheckpointError, match=message) as caught:
        load_all(write(tmp_path, {**contents, name: contents[name] | change}))
    assert name in caught.value.message
    assert caught.value.hint


def test_flags_that_an_added_token_leaves_out_are_off(checkpoint, tmp_path):
    _, contents = checkpoint
    config = {"added_tokens_decoder": {"8": {"content": "<late>"}}, "chat_template": "{{ 1 }}"}
    tokenizer = load_tokenizer(write(tmp_path, {**contents, "tokenizer_config.json": config}))
    assert tokenizer.encode("<late>") == [8]
    assert not tokenizer.is_control(8)


def test_templates_that_are_no_text(checkpoint, tmp_path):
    _, contents = checkpoint
    files = write(tmp_path, contents)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read as UTF-8"):
        load_all(files)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.jinja").mkdir()
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: cannot be read"):
        load_all(files)
    shutil.rmtree(tmp_path / "chat_template.jinja")
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: not JSON"):
        load_all(files)
