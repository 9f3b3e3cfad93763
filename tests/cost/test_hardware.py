import csv
from importlib import resources

import pytest

from ridgeline.cost.hardware import Hardware, find_device, load_devices
from ridgeline.errors import ConfigError


def test_every_row_of_the_table_is_a_device_with_its_source():
    text = resources.files("ridgeline").joinpath("data/hardware.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    devices = load_devices()
    assert len(devices) == len(rows) == 96  # 95 real ones and the handbook's
    assert all(device.bandwidth and device.source and device.confidence for device in devices.values())


def test_figures_are_in_bytes_and_flops_per_second():
    device = find_device("h100-sxm")
    assert (device.name, device.memory_bytes, device.bandwidth) == ("h100-sxm-80gb", 80 * 10**9, 3350e9)
    assert device.compute == {"bf16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12}


def test_what_a_vendor_does_not_publish_is_unknown_not_zero():
    assert "bf16" not in find_device("apple-m5-pro").compute
    assert find_device("raspberry pi 5").memory_bytes == 16 * 10**9
    assert find_device("epyc-9654").memory_bytes is None  # installed DRAM


@pytest.mark.parametrize(
    ("name", "device"),
    [("L4", "l4"), ("l40", "l40"), ("RTX 4090", "rtx-4090"), ("4090", "rtx-4090"), ("m1", "apple-m1"),
     ("rtx-4060", "rtx-4060"), ("H200", "h200-sxm-141gb"), ("8480+", "xeon-platinum-8480+-1-socket")],
)  # fmt: skip
def test_names(name, device):
    assert find_device(name).name == device


def test_an_ambiguous_name_lists_what_it_may_mean():
    with pytest.raises(ConfigError, match="ambiguous") as caught:
        find_device("h100")
    assert caught.value.hint == "choose one of h100-sxm-80gb, h100-pcie-80gb, h100-nvl-94gb"


@pytest.mark.parametrize(("name", "near"), [("h100-sxn", "h100-sxm-80gb"), ("rtx-4091", "rtx-4090"), ("zzz", "--list")])
def test_an_unknown_name_names_the_nearest(name, near):
    with pytest.raises(ConfigError, match="unknown hardware") as caught:
        find_device(name)
    assert near in caught.value.hint


def test_several_devices_add_up():
    two = find_device("example-gpu").times(2)
    assert (two.memory_bytes, two.bandwidth, two.compute) == (96 * 10**9, 2000e9, {"bf16": 200e12})


MEASURED = Hardware("this", bandwidth=10.0, bandwidth_by_working_set=((100, 40.0), (1000, 20.0), (4000, 10.0)))


@pytest.mark.parametrize(("size", "rate"), [(50, 40.0), (100, 40.0), (999, 40.0), (1000, 20.0), (9999, 10.0)])
def test_a_working_set_has_the_rate_of_the_next_smaller_one_measured(size, rate):
    assert MEASURED.bandwidth_for(size) == rate  # never slower than the truth, so that a floor stays one


def test_given_figures_replace_the_devices_own():
    changed = MEASURED.with_figures(bandwidth=7.0, compute=None, memory_bytes=5)
    assert (changed.bandwidth_for(100), changed.memory_bytes) == (7.0, 5)
    assert changed.name == "this (changed)"
