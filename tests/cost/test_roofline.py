"""The roofline on a model whose figures can be checked on paper: bounds, what binds, and where that turns."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_8b import DenseFacts
from ridgeline.cost.hardware import Hardware, find_device
from ridgeline.cost.roofline import Roofline, Work, compute_rate, smallest_batch

FACTS = DenseFacts()
GPU = Hardware("gpu", 48 * 10**9, 1000e9, {"bf16": 100e12})
ROOFLINE = Roofline(FACTS, GPU, "bf16", "bf16")


def test_a_step_takes_the_larger_of_reading_and_computing():
    assert ROOFLINE.time(Work(2000e9, 100e12)) == 2.0
    assert ROOFLINE.time(Work(2000e9, 300e12)) == 3.0
    assert (ROOFLINE.binds(Work(2000e9, 100e12)), ROOFLINE.binds(Work(2000e9, 300e12))) == ("memory", "compute")
    assert ROOFLINE.ridge == 100


def test_decode_reads_weights_once_and_every_sequences_kv():
    work = ROOFLINE.decode(2500, batch=32)
    weights = (8_028_164_096 - 128_000 * 4096 + 32 * 4096) * 2  # 32 rows of the embedding table
    assert work.bytes_read == weights + 32 * 2500 * 131_072
    matrices = 2 * 32 * (8_028_164_096 - 128_000 * 4096 - 65 * 4096)  # norms multiply nothing
    assert work.flops == matrices + 32 * 4 * 32 * 4096 * 2500


def test_prefill_counts_the_output_matrix_once_and_the_upper_triangle_of_attention():
    work = ROOFLINE.prefill(2000)
    layers = 32 * (2 * 4096 * 128 * 40 + 3 * 4096 * 14336)
    assert work.flops == 2 * (2000 * layers + 128_000 * 4096) + 4 * 32 * 4096 * 2000 * 2001 / 2


def test_cached_tokens_are_read_instead_of_computed():
    whole, rest = ROOFLINE.prefill(2000), ROOFLINE.prefill(2000, cached=1500)
    skipped = ROOFLINE.prefill(1500)
    output_matrix = 2 * 128_000 * 4096
    assert rest.flops == pytest.approx(whole.flops - skipped.flops + output_matrix)
    assert rest.bytes_read - ROOFLINE.prefill(500).bytes_read == 1500 * 131_072


def test_decode_never_turns_compute_bound_when_each_sequence_brings_much_kv():
    assert ROOFLINE.compute_bound_batch(2500) is None
    batch = ROOFLINE.compute_bound_batch(100)
    assert ROOFLINE.binds(ROOFLINE.decode(100, batch=batch)) == "compute"
    assert ROOFLINE.binds(ROOFLINE.decode(100, batch=batch - 1)) == "memory"


@given(st.integers(1, 10**6))
def test_the_smallest_batch_is_found(threshold):
    assert smallest_batch(lambda batch: batch >= threshold) == threshold


def test_the_search_for_a_batch_ends():
    assert smallest_batch(lambda batch: False) is None


def test_verifying_drafts_counts_each_drafts_own_context():
    work = ROOFLINE.decode(104, tokens=5)
    each = [ROOFLINE.decode(context) for context in range(100, 105)]
    assert work.flops == sum(w.flops for w in each)
    assert work.bytes_read < 2 * each[0].bytes_read


def test_an_unknown_ceiling_does_not_bind():
    only_bandwidth = dataclasses.replace(ROOFLINE, hardware=Hardware("gpu", bandwidth=1000e9))
    assert only_bandwidth.time(Work(2000e9, 300e12)) == 2.0
    assert only_bandwidth.binds(Work(2000e9, 300e12)) is None
    assert only_bandwidth.ridge is None
    assert dataclasses.replace(ROOFLINE, hardware=Hardware("gpu")).time(Work(1, 1)) is None


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("h100-sxm", "bf16", 989.4),
        ("h100-sxm", "int4", 989.4),  # weights in few bits are widened
        ("h100-sxm", "fp8-128x128", 1978.9),
        ("Xeon Max 9480 (HBM)", "bf16", 217),
        ("Xeon Max 9480 (HBM)", "int4-g32+bf16", 435),  # CPUs multiply integers
        ("Xeon Max 9480 (HBM)", "gguf", 435),
        ("a100-sxm-80gb", "fp8", 312),  # has no fp8: widened too
        ("b200", "nvfp4", 9000),
        ("example-gpu", "fp32", 100),  # the table has no fp32 column: the bf16 figure is an upper bound
    ],
)
def test_compute_is_that_of_the_matrices_input_type(device, dtype, tflops):
    assert compute_rate(find_device(device), dtype) == pytest.approx(tflops * 1e12)
