"""The figures of benchmarks/quality.py: right on known distributions, and of the windows that they speak of."""

from __future__ import annotations

import importlib
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from checkpoints import make_hf
from ridgeline.errors import ConfigError
from ridgeline.model.runtime import load_runtime

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODULES = ("divergence", "held_out", "llama_cpp_quality", "novels", "quality_report", "reordered", "runs")


@pytest.fixture(scope="module")
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield {name: importlib.import_module(name) for name in MODULES}


@pytest.fixture
def divergence(benchmarks):
    return benchmarks["divergence"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return str(make_hf(tmp_path_factory.mktemp("quality"), "llama", max_position_embeddings=1024))


def logprobs(*rows):
    return np.log(np.array(rows, np.float64))


def test_token_scores_of_known_distributions(divergence):
    fair, loaded = [0.25] * 4, [0.5, 0.25, 0.125, 0.125]
    found = divergence.score(logprobs(loaded, fair, loaded), logprobs(fair, loaded, loaded) + 7, np.array([0, 2, 3]))
    np.testing.assert_allclose(found.nll, np.log([4, 8, 8]))
    # sum p log(p / q): loaded against fair is 0.25 ln 2; fair against loaded 0.25 (-1 + 0 + 1 + 1) ln 2
    np.testing.assert_allclose(found.kl, np.array([0.25, 0.25, 0]) * np.log(2), atol=1e-15)
    assert found.same_top.tolist() == [True, True, True]
    other_top = divergence.score(logprobs(loaded), logprobs(loaded[::-1]), np.array([0]))
    assert other_top.same_top.tolist() == [False]


def test_blocks_make_no_difference_and_logits_of_any_size_are_taken(divergence):
    rng = np.random.default_rng(0)
    rows = divergence.BLOCK * 2 + 3
    logits = rng.normal(size=(rows, 50)).astype(np.float32) * 1000
    reference = divergence.log_softmax(rng.normal(size=(rows, 50)))
    targets = rng.integers(0, 50, rows)
    whole = divergence.score(reference, logits, targets)
    for row in (0, divergence.BLOCK, rows - 1):
        one = slice(row, row + 1)
        alone = divergence.score(reference[one], logits[one], targets[one])
        assert (alone.nll[0], alone.kl[0]) == (whole.nll[row], whole.kl[row])
    assert np.isfinite(whole.kl).all()
    assert (whole.kl >= 0).all()


def test_logits_that_are_not_finite_are_an_error(divergence):
    logits = np.zeros((2, 4))
    logits[1, 3] = np.nan
    with pytest.raises(ValueError, match="1 of 8 logits are not finite"):
        divergence.score(np.zeros((2, 4)), logits, np.array([0, 0]))


def test_summary_has_means_of_windows_and_the_percentile_of_all_tokens(divergence):
    kl = np.arange(2000.0)
    windows = [
        divergence.TokenScores(np.full(1000, i + 1.0), kl[i * 1000 : (i + 1) * 1000], np.arange(1000) < 900)
        for i in range(2)
    ]
    found = divergence.summarize(windows)
    assert (found.nll, found.same_top, found.num_tokens) == ([1.0, 2.0], [0.9, 0.9], 2000)
    assert found.kl == [499.5, 1499.5]
    assert found.kl_p999 == pytest.approx(1999 * 0.999)


def test_perplexity_and_its_error(divergence):
    found = divergence.perplexity([np.log(10), np.log(40)])
    assert found.value == pytest.approx(20)
    assert found.error == pytest.approx(20 * np.log(2))  # of two values: half their distance, log 4 / 2


def test_a_paired_difference_is_free_of_what_windows_have_in_common(divergence):
    base = np.array([1.0, 5.0, 9.0])
    found = divergence.relative_perplexity((base + np.log(1.02)).tolist(), base.tolist())
    assert found.value == pytest.approx(0.02)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_scored_logits_are_those_of_the_second_half(benchmarks, checkpoint):
    from ridgeline.model.runtime import load_runtime

    held_out, runs = benchmarks["held_out"], benchmarks["runs"]
    window = np.random.default_rng(0).integers(0, 300, held_out.WINDOW).astype(np.int32)
    runtime = load_runtime(checkpoint, held_out.parse_format("bf16+kv=bf16"), num_sampler_slots=1)
    scored = held_out.window_logits(runtime.executor, window)
    every = runs.forced_logits(runtime.executor, window.tolist(), [len(window)])
    runtime.close()
    text = held_out.HeldOut(checkpoint, "random", window[None])
    assert len(scored) == text.targets.shape[1] == 511
    np.testing.assert_array_equal(scored, every[512:-1])
    np.testing.assert_array_equal(text.targets[0], window[513:])


def test_the_reference_agrees_with_itself(benchmarks, checkpoint, tmp_path):
    held_out = benchmarks["held_out"]
    (tmp_path / "words.txt").write_text("the quick brown fox runs over the river " * 400)
    text = held_out.cut(checkpoint, tmp_path / "words.txt", num_windows=2)
    reference = held_out.Reference(text, tmp_path)
    again, facts = held_out.evaluate(checkpoint, "fp32", reference)
    assert again.nll == pytest.approx(reference.quality.nll, abs=1e-6)  # the reference is kept in fp32
    assert max(again.kl) < 1e-6
    assert again.same_top == [1.0, 1.0]
    assert facts == reference.facts
    [kept] = tmp_path.glob("*.logprobs")
    made = kept.stat().st_mtime_ns
    assert held_out.Reference(text, tmp_path).quality == reference.quality
    assert kept.stat().st_mtime_ns == made  # taken, not made again
    rounded, facts = held_out.evaluate(checkpoint, "bf16", reference)
    assert min(rounded.kl) > max(again.kl)
    assert facts["weight_bytes"] < reference.facts["weight_bytes"]


def test_another_order_of_the_values_is_the_same_function(benchmarks, checkpoint, tmp_path):
    held_out, token_ids = benchmarks["held_out"], np.arange(1024, dtype=np.int32) % 200
    benchmarks["reordered"].write_reordered(Path(checkpoint), tmp_path / "reordered", seed=1)

    def logits(model: str, dtype: str) -> np.ndarray:
        runtime = load_runtime(model, held_out.parse_format(dtype, threads=1), num_sampler_slots=1)
        try:
            return held_out.window_logits(runtime.executor, token_ids)
        finally:
            runtime.close()

    there = str(tmp_path / "reordered")
    np.testing.assert_allclose(logits(there, "fp32"), logits(checkpoint, "fp32"), rtol=1e-3, atol=1e-4)
    assert np.abs(logits(there, "int4-g32") - logits(checkpoint, "int4-g32")).max() > 1e-2  # other groups, other errors


def test_a_tensor_of_unknown_order_is_an_error(benchmarks, tmp_path):
    source = make_hf(tmp_path / "source", "qwen2")  # has biases
    with pytest.raises(ConfigError, match="bias: not a tensor of a Llama"):
        benchmarks["reordered"].write_reordered(source, tmp_path / "reordered", seed=1)


def test_a_text_that_is_too_short_is_an_error_with_the_numbers(benchmarks, checkpoint, tmp_path):
    (tmp_path / "short.txt").write_text("the quick brown fox")
    with pytest.raises(ConfigError, match=r"short\.txt: \d+ tokens, 16 windows need 16,384"):
        benchmarks["held_out"].cut(checkpoint, tmp_path / "short.txt")


def test_a_format_that_cannot_be_read_is_an_error(benchmarks):
    parse = benchmarks["held_out"].parse_format
    assert parse("bf16+kv=fp32").kv_dtype == "fp32"
    for name in ("bf16+haed=int8", "bf16+kv", "bf16+"):
        with pytest.raises(ConfigError, match="what is"):
            parse(name)


def test_a_file_of_llama_perplexity_is_read(benchmarks, tmp_path):
    held_out, tool = benchmarks["held_out"], benchmarks["llama_cpp_quality"]
    windows = np.arange(2 * held_out.WINDOW, dtype=np.int32).reshape(2, -1)
    text = held_out.HeldOut("model", "text", windows)
    rng = np.random.default_rng(0)
    step = rng.uniform(1e-4, 1e-3, text.targets.shape).astype(np.float32)
    lowest = rng.uniform(-20, -10, text.targets.shape).astype(np.float32)
    multiples = rng.integers(0, 1 << 16, (*text.targets.shape, 7)).astype(np.uint16)
    rows = np.dtype([("step", "<f4"), ("lowest", "<f4"), ("multiples", "<u2", (8,))])  # 7 are rounded up to even
    data = np.zeros(text.targets.shape, rows)
    data["step"], data["lowest"], data["multiples"][..., :7] = step, lowest, multiples
    path = tmp_path / "logits.bin"
    header = b"_logits_" + np.array([held_out.WINDOW, 7, 2], "<i4").tobytes()
    path.write_bytes(header + windows.tobytes() + data.tobytes())
    for window, logprobs in enumerate(tool.read_logprobs(path, text)):
        np.testing.assert_array_equal(logprobs, lowest[window, :, None] + step[window, :, None] * multiples[window])
    other = held_out.HeldOut("model", "text", windows + (windows == 1500))
    with pytest.raises(ConfigError, match="other tokens from 1500 on"):
        next(tool.read_logprobs(path, other))


def test_results_keep_rows_of_the_same_text_and_no_others(benchmarks, divergence, tmp_path):
    report = benchmarks["quality_report"]
    facts = {"weight_bytes": 1_000_000, "arithmetic": "native-1-amx-fp32-fp32"}
    results = report.Results(tmp_path)
    results.begin("model", "novel", "key")
    for name, nll in (("fp32", [3.0, 4.0]), ("bf16", [3.001, 4.001]), ("int8", [3.01, 4.01])):
        results.add("model", name, divergence.Quality(nll, [0.1, 0.2], 0.5, [0.9, 1.0], 1022), facts)
    later = report.Results(tmp_path)
    later.begin("model", "novel", "key")
    document = later.document()
    assert "| bf16 | 1.0 |" in document
    assert "+0.10% ± 0.00%" in document
    assert "int8 against bf16: perplexity +0.90% ± 0.00%, at most +0.5%: missed." in document
    assert document == (tmp_path / "quality.md").read_text()
    later.begin("model", "novel", "another key")
    later.add("model", "fp32", divergence.Quality([3.0, 4.0], [0, 0], 0, [1, 1], 1022), facts)
    assert "bf16 |" not in later.document()


def test_draws_are_compared_in_pairs_and_tell_their_spread(benchmarks, divergence, tmp_path):
    results = benchmarks["quality_report"].Results(tmp_path)
    results.begin("m", "text", "key")
    rows = divergence.Quality(nll=[1.0, 2.0], kl=[0.0, 0.0], kl_p999=0.0, same_top=[1.0, 1.0], num_tokens=2)
    results.add("m", "fp32", rows, {"weight_bytes": 1, "arithmetic": "native-3-amx"})
    ours, peer = "int4-g32", "llama.cpp Q4_0 pure"
    pairs = ((0.002, 0.003), (0.006, 0.007))
    draws = [{ours: {"perplexity": a, "kl": 1.0}, peer: {"perplexity": b, "kl": 0.5}} for a, b in pairs]
    results.add_draws("m", 32, draws)
    document = results.document()
    assert "| int4-g32 | +0.40% ± 0.20% | 0.28% | 1.00000 ± 0.00000 |" in document
    assert f"- {ours} against {peer}: perplexity -0.10% ± 0.00%, no higher: met" in document
    assert "mean KL +0.50000 ± 0.00000, no further from fp32: missed." in document


def test_a_verdict_needs_more_than_two_standard_errors(benchmarks, divergence):
    verdict, estimate = benchmarks["quality_report"]._verdict, divergence.Estimate
    assert verdict(estimate(0.004, 0.01), 0.005) == "met"
    assert verdict(estimate(0.007, 0.0011), 0.005) == "undecided"
    assert verdict(estimate(0.007, 0.0009), 0.005) == "missed"


def test_the_text_of_an_r_database(benchmarks):
    def vector(*lines: str) -> bytes:
        data = b"X\n" + struct.pack(">iii", 3, 0x040201, 0x030500) + struct.pack(">i", 5) + b"UTF-8"
        data += struct.pack(">ii", 16, len(lines))
        for line in lines:
            data += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
        return struct.pack(">I", len(data)) + zlib.compress(data)

    novels = benchmarks["novels"]
    database = vector("PERSUASION", "", "by Jane Austen") + vector("É")
    assert novels.unpack_database(database) == [["PERSUASION", "", "by Jane Austen"], ["É"]]
    damaged = struct.pack(">I", 3) + zlib.compress(b"abcd")
    with pytest.raises(ConfigError, match="4 bytes at 0, 3 expected"):
        novels.unpack_database(damaged)
