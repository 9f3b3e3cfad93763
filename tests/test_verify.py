"""`make verify` tells PASS, FAIL and SKIPPED apart, in words and by exit status."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from checkpoints import make_hf

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def verify():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.setenv("COLUMNS", "300")  # no line breaks inside a path
        module = importlib.import_module("verify")
        patch.setattr(module, "PROMPTS", module.PROMPTS[:2])
        patch.setattr(module, "NUM_OUTPUT_TOKENS", 8)
        yield module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(make_hf(tmp_path_factory.mktemp("verify"), "qwen3", max_position_embeddings=2048))


def test_a_model_that_is_not_there_is_skipped_visibly(verify, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert verify.main(["Qwen/Qwen3-0.6B"]) == 0
    printed = capsys.readouterr().out
    assert "SKIPPED: Qwen/Qwen3-0.6B" in printed
    assert "tokenizer.json" in printed


def test_a_right_model_passes(verify, checkpoint, capsys):
    assert verify.main([checkpoint]) == 0
    printed = capsys.readouterr().out
    assert "PASS" in printed
    assert "transformers" in printed


def test_a_chunk_that_changes_bits_fails_and_so_does_a_difference_beyond_the_tolerance(
    verify, checkpoint, monkeypatch, capsys
):
    right = verify.forced_logits

    def wrong_in_chunks(executor, token_ids, chunk_lens):
        return right(executor, token_ids, chunk_lens) + (1e-6 if chunk_lens[0] == verify.CHUNK else 0)

    monkeypatch.setattr(verify, "forced_logits", wrong_in_chunks)
    monkeypatch.setattr(verify, "RELATIVE_TOLERANCE", 0.0)
    assert verify.main([checkpoint]) == 1
    printed = capsys.readouterr().out
    assert printed.count("FAILED") == 3  # chunks in fp32 and bf16, and transformers at tolerance zero


def test_a_damaged_checkpoint_fails_with_its_error(verify, tmp_path, capsys):
    make_hf(tmp_path, "llama", max_position_embeddings=2048)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    assert verify.main([str(tmp_path)]) == 1
    assert "model.safetensors" in capsys.readouterr().out
