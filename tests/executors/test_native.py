"""What the native executor promises beyond right logits: the same bits under every schedule (invariant 5), the same
samples as the sampler's specification, bf16 that differs from the oracle's by accumulation order alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import VOCAB_SIZE, make_hf
from executors_under_test import open_executor
from ridgeline._native import kernels
from ridgeline.engine.plan import NO_TOKEN, SamplerSetup
from ridgeline.errors import ConfigError
from ridgeline.executors.sampling import SamplerSlots, score
from step_plans import Stepper, sampler_setup

PROMPTS = [np.random.default_rng(seed).integers(3, VOCAB_SIZE, size).tolist() for seed, size in ((0, 70), (1, 33))]
FORMATS = ("fp32", "bf16")


@pytest.fixture(scope="module", params=["qwen3", "mistral"])
def model(request, tmp_path_factory) -> str:
    """q/k norms with a head size of its own, and a sliding window; 70 tokens cross pages and windows."""
    return str(make_hf(tmp_path_factory.mktemp(request.param), request.param))


@pytest.mark.parametrize("dtype", FORMATS)
def test_bits_do_not_depend_on_the_schedule(model, dtype):
    with open_executor("native", model, dtype=dtype, kv_dtype=dtype, threads=1) as executor:
        alone = [Stepper(executor).logits([prompt])[0] for prompt in PROMPTS]
    for threads, chunks in ((2, (None, 64, 16, 7, 1)), (16, (None, 7, 1))):  # 16: most of them wait for a core
        with open_executor("native", model, dtype=dtype, kv_dtype=dtype, threads=threads) as executor:
            for chunk in chunks:
                together = Stepper(executor).logits(PROMPTS, chunk)
                for ours, expected in zip(together, alone, strict=True):
                    np.testing.assert_array_equal(ours, expected, err_msg=f"chunk {chunk}, {threads} threads")


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_isa_path_gives_the_same_bits(model, dtype, monkeypatch):
    """More than the promise, which is per path; it holds because each Vec operation rounds once, on every path."""
    logits = {}
    for isa in kernels.isas():
        monkeypatch.setenv("RIDGELINE_ISA", isa)
        with open_executor("native", model, dtype=dtype, kv_dtype=dtype) as executor:
            assert f"-{isa}-" in executor.arithmetic_id
            logits[isa] = np.concatenate(Stepper(executor).logits(PROMPTS, 40))
    assert len(logits) >= 1
    for isa, rows in logits.items():
        np.testing.assert_array_equal(rows, logits["generic"], err_msg=isa)


def test_an_isa_path_that_is_not_there_is_refused_by_name(model, monkeypatch):
    monkeypatch.setenv("RIDGELINE_ISA", "sse9")
    with pytest.raises(ConfigError, match="RIDGELINE_ISA: unknown ISA path 'sse9'"), open_executor("native", model):
        pass


def test_absurdly_many_threads_are_refused(model):
    with (
        pytest.raises(ConfigError, match=r"threads = 100000: at most"),
        open_executor("native", model, threads=100_000),
    ):
        pass


def test_a_copied_page_brings_none_of_its_owners_later_tokens(poisoned):
    """The owner went on after the shared tokens, with a NaN; the copy must not carry that into the other sequence."""
    shared, tail = [5, 6, 8, 9, 11], [12, 13, 14]
    with open_executor("native", poisoned, num_pages=5, threads=1) as executor:
        stepper = Stepper(executor)
        (expected,) = stepper.logits([shared + tail])
        owner, other = stepper.open(16), stepper.open(16)
        stepper.run([(owner, shared)])
        stepper.run([(owner, [7, 7])])
        other.length = len(shared)
        result = stepper.run([(other, tail)], copy_pages=[(owner.pages[0], other.pages[0])])
        np.testing.assert_array_equal(result.logits, expected[len(shared) :])


def test_bf16_follows_the_oracle_that_rounds_at_the_same_points(model):
    """Logits of order 4. Two sums that differ in the last fp32 bit may round to neighbouring bf16 values, which are
    2^-8 apart, and later layers carry that on; without common rounding points the difference would be about 3e-2."""
    logits = {}
    for kind in ("torch", "native"):
        with open_executor(kind, model, dtype="bf16", kv_dtype="bf16") as executor:
            logits[kind] = np.concatenate(Stepper(executor).logits(PROMPTS))
    difference = np.abs(logits["native"] - logits["torch"])
    assert difference.max() < 5e-2
    assert difference.mean() < 2e-3


def random_setup(slot: int) -> SamplerSetup:
    rng = random.Random(slot)
    return sampler_setup(
        slot,
        temperature=rng.choice([0.0, 0.2, 1.0, 3.0]),
        top_k=rng.choice([0, 0, 1, 7, 400]),
        top_p=rng.choice([1.0, 0.99, 0.7, 0.1]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.9]),
        repetition_penalty=rng.choice([1.0, 0.8, 1.5]),
        presence_penalty=rng.choice([0.0, -1.0, 1.5]),
        frequency_penalty=rng.choice([0.0, 0.4]),
        seed=rng.getrandbits(64),
        choice=rng.randrange(4),
        min_tokens=rng.choice([0, 3]),
        banned_ids=tuple(rng.sample(range(VOCAB_SIZE), 40)),
        logit_bias=tuple((token_id, rng.uniform(-5, 5)) for token_id in rng.sample(range(VOCAB_SIZE), 5)),
        top_logprobs=rng.choice([0, 5]),
        prompt_ids=tuple(rng.choices(range(VOCAB_SIZE), k=50)),
        output_ids=tuple(rng.choices(range(VOCAB_SIZE), k=8)),
    )


SETUPS = [
    sampler_setup(0),
    sampler_setup(1, temperature=0.8, seed=2**63 + 11, top_logprobs=20),
    sampler_setup(2, temperature=1.5, seed=3, choice=2, top_k=40, top_p=0.9, min_p=0.01, top_logprobs=1),
    sampler_setup(3, temperature=1.0, seed=4, top_p=0.5, repetition_penalty=1.3, prompt_ids=tuple(range(0, 300, 2))),
    sampler_setup(4, presence_penalty=0.9, frequency_penalty=0.7, output_ids=(5, 5, 9)),
    sampler_setup(5, temperature=0.7, seed=5, min_p=0.2, logit_bias=((7, 2.5), (8, -100.0)), top_k=3),
    sampler_setup(6, banned_ids=tuple(range(0, 320, 3)), min_tokens=5),
    sampler_setup(7, banned_ids=tuple(range(1, VOCAB_SIZE)), min_tokens=5),  # its fifth token is the last that is 0
    sampler_setup(8, temperature=1.0, seed=6, top_k=2, top_p=0.5, logit_bias=((7, 2.0**30), (8, 2.0**30))),  # a tie
    *(random_setup(slot) for slot in range(9, 49)),
]


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_samples_follow_the_specification(kind, model):
    """Requests with every setting, alone and combined, 12 tokens each, one step per token; the expected choice is
    computed from the logits that the executor returns."""
    with open_executor(kind, model) as executor:
        stepper, twin = Stepper(executor), SamplerSlots(VOCAB_SIZE)
        contexts = [stepper.open(12) for _ in SETUPS]
        slots = np.arange(len(SETUPS), dtype=np.int32)
        inputs = [[s.slot + 3] for s in SETUPS]
        for setup in SETUPS:
            twin.open(setup)
        for step in range(12):
            feeds = list(zip(contexts, inputs, strict=True))
            result = stepper.run(feeds, sampler_slots=slots, setups=SETUPS if step == 0 else [])
            for slot in slots:
                expected = twin.sample(slot, result.logits[slot], position=step + 1)
                assert result.token_ids[slot] == expected.token_id, f"slot {slot}, step {step}"
                assert result.logprobs[slot] == pytest.approx(expected.logprob, abs=1e-6)
                assert_same_alternatives(result, slot, expected)
            inputs = [[int(token_id)] for token_id in result.token_ids]


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_scored_rows_give_prompt_logprobs(kind, model):
    prompt = PROMPTS[1]
    score_ids = np.array([*prompt[1:], NO_TOKEN], np.int32)
    with open_executor(kind, model) as executor:
        stepper = Stepper(executor)
        score_top = np.full(len(prompt), 3, np.int32)
        result = stepper.run([(stepper.open(len(prompt)), prompt)], score_ids=score_ids, score_top=score_top)
    assert (result.token_ids == NO_TOKEN).all()
    for row, token_id in enumerate(prompt[1:]):
        expected = score(result.logits[row], token_id, 3)
        assert result.logprobs[row] == pytest.approx(expected.logprob, abs=1e-6)
        assert_same_alternatives(result, row, expected)


def assert_same_alternatives(result, row, expected) -> None:
    count = len(expected.top)
    assert result.top_ids[row, :count].tolist() == [token_id for token_id, _ in expected.top]
    assert (result.top_ids[row, count:] == NO_TOKEN).all()
    np.testing.assert_allclose(result.top_logprobs[row, :count], [l for _, l in expected.top], atol=1e-6)


@pytest.fixture(scope="module", params=[64, 72])
def poisoned(request, tmp_path_factory) -> str:
    """A model in which token 7 has an embedding of NaN. 72 values are padded to whole vectors in memory."""
    directory = make_hf(tmp_path_factory.mktemp("poisoned"), "llama", hidden_size=request.param)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = torch.nan
    save_file(tensors, directory / "model.safetensors")
    return str(directory)


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_a_row_of_nan_stays_alone_and_leaves_nothing_in_its_pages(kind, poisoned):
    healthy, sick = PROMPTS[0][:20], [7] * 20
    healthy = [token_id for token_id in healthy if token_id != 7]
    with open_executor(kind, poisoned, num_pages=5) as executor:
        stepper = Stepper(executor)
        (expected,) = stepper.logits([healthy])
        contexts = [stepper.open(20), stepper.open(20)]
        rows = np.array([len(healthy) - 1, len(healthy) + len(sick) - 1], np.int32)
        setups = [sampler_setup(0, temperature=1.0), sampler_setup(1, temperature=1.0)]
        result = stepper.run(
            [(contexts[0], healthy), (contexts[1], sick)],
            logit_rows=rows, sampler_slots=np.array([0, 1], np.int32), setups=setups,
            score_ids=np.full(2, NO_TOKEN, np.int32), score_top=np.zeros(2, np.int32),
        )  # fmt: skip
        assert result.finite.tolist() == [True, False]
        assert result.token_ids[0] != NO_TOKEN
        assert result.token_ids[1] == NO_TOKEN
        np.testing.assert_allclose(result.logits[0], expected[-1], atol=1e-5)
        for context in contexts:
            stepper.close(context)
        for logits in stepper.logits([healthy, healthy]):  # takes all pages again
            np.testing.assert_allclose(logits, expected, atol=1e-5)
