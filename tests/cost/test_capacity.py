import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_8b import DenseFacts
from ridgeline.cost.capacity import advice, capacity, largest_context
from ridgeline.cost.facts import load_facts
from ridgeline.cost.hardware import Hardware, find_device, load_devices
from ridgeline.cost.memory import KV_SHARE, PAGE_SIZE
from ridgeline.cost.roofline import Roofline

FACTS = DenseFacts()
ROOFLINE = Roofline(FACTS, find_device("example-gpu"), "bf16", "bf16")
PAGES = math.ceil(2500 / PAGE_SIZE)


def test_two_counts():
    found = capacity(ROOFLINE, 2500)
    free = 48 * 10**9 - FACTS.weight_bytes("bf16")
    assert found.memory_free_bytes == free
    assert found.max_concurrent_requests == free // (2500 * 131_072)
    usable_pages = int(KV_SHARE * free) // (PAGE_SIZE * 131_072) - 1
    assert found.admissible_requests == usable_pages // PAGES  # 2,500 tokens fill no whole number of them


@pytest.mark.parametrize(("pages", "requests"), [(3 * PAGES, 2), (3 * PAGES + 1, 3)])
def test_one_page_is_reserved(pages, requests):
    free = math.ceil(pages * PAGE_SIZE * 131_072 / KV_SHARE) + 1
    hardware = Hardware("x", FACTS.weight_bytes("bf16") + free)
    assert capacity(dataclasses.replace(ROOFLINE, hardware=hardware), 2500).admissible_requests == requests


@given(final_len=st.integers(1, 200_000), memory_gb=st.integers(1, 400))
def test_what_is_admitted_fits(final_len, memory_gb):
    found = capacity(dataclasses.replace(ROOFLINE, hardware=Hardware("x", memory_gb * 10**9)), final_len)
    assert found.admissible_requests <= found.max_concurrent_requests
    if found.max_concurrent_requests:
        used = found.max_concurrent_requests * FACTS.kv_bytes(final_len)
        assert used <= found.memory_free_bytes < used + FACTS.kv_bytes(final_len)
    if 0 < found.largest_context < FACTS.max_context:
        one_more = found.largest_context + 1
        assert FACTS.kv_bytes(found.largest_context) <= found.memory_free_bytes < FACTS.kv_bytes(one_more)


def test_windows_stop_growing():
    gemma = load_facts("gemma-3-1b")
    budget = gemma.kv_bytes(20_000, "bf16") + 100
    assert largest_context(gemma, "bf16", budget) == 20_000
    roofline = Roofline(gemma, find_device("example-gpu"), "bf16", "bf16")
    found = capacity(roofline, 32_000)
    assert 0.7 * found.max_concurrent_requests < found.admissible_requests < found.max_concurrent_requests


def test_unknown_memory_has_no_capacity():
    assert capacity(dataclasses.replace(ROOFLINE, hardware=Hardware("x")), 100) is None


def test_advice_when_the_weights_are_too_large():
    roofline = dataclasses.replace(ROOFLINE, hardware=find_device("rtx-4070"), facts=load_facts("example-8b"))
    lines = advice(roofline, 2500, load_devices())
    assert [line.partition(" (")[0].partition(":")[0] for line in lines] == [
        "--dtype int8", "--dtype int4", "--devices 2", "--devices 4", "--devices 8", "--hardware a10",
    ]  # fmt: skip
    assert lines[0].endswith(f": {(12 * 10**9 - roofline.facts.weight_bytes('int8')) // (2500 * 131_072)} requests of "
                             "2,500 tokens")  # fmt: skip


def test_advice_when_the_context_is_too_long():
    lines = advice(ROOFLINE, 300_000, load_devices())
    assert lines[0] == "at most 131,072 tokens: one request fits as it is"


def test_no_advice_for_what_fits():
    assert advice(ROOFLINE, 2500, load_devices()) == []


@pytest.mark.parametrize("memory_bytes", [1, 10**6])
def test_hopeless_cases_are_told(memory_bytes):
    roofline = dataclasses.replace(ROOFLINE, hardware=Hardware("toy", memory_bytes))
    assert advice(roofline, 2500, {})[0].startswith("nothing that Ridgeline knows")
