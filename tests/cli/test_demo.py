"""`make demo`'s program: its arithmetic, and its server when it does not come up. `make demo` itself is the whole."""

import subprocess
import types

import pytest

from quick import QUICK
from ridgeline.cli import demo


def test_the_report_sets_the_measured_time_beside_the_floor(monkeypatch):
    monkeypatch.setattr(demo, "read_bandwidth", lambda num_bytes, threads: 20e9)
    timing = demo.Timing(prompt_len=44, output_len=101, ttft_s=0.25, decode_s=2.0)
    assert timing.tpot_s == pytest.approx(0.020)  # 100 intervals
    num_bytes = 134_515_008 * 2 + 94 * 23_040  # weights, and KV at the mean context of 44 + 101 / 2 tokens
    share = num_bytes / 20e9 / 0.020
    text = "\n".join(demo.report(timing))
    assert "TTFT       250.0 ms" in text
    assert "TPOT       20.00 ms = 50.0 tokens/s" in text
    assert f"{share:.0%} of this machine's limit" in text
    assert 0.6 < share < 0.7


def test_the_mean_context_is_that_of_the_decode_steps():
    timing = demo.Timing(prompt_len=10, output_len=5, ttft_s=1, decode_s=1)
    context_lens = [11, 12, 13, 14]  # of the four steps after the first output token
    assert timing.mean_context_len == sum(context_lens) / len(context_lens)


def test_a_server_that_fails_shows_its_log():
    with pytest.raises(demo.ServerFailed, match="unknown model 'no-such-model'"), demo.running_server("no-such-model"):
        pytest.fail("the block must not run")


def test_a_question_is_timed_and_the_server_stopped_also_after_an_error(tiny_model, monkeypatch, capsys):
    processes, timings = [], []

    def remember(*arguments, **options):
        processes.append(subprocess.Popen(*arguments, **options))
        return processes[-1]

    def ask_then_fail():
        with demo.running_server(tiny_model, *QUICK) as url:
            timings.append(demo.ask(url, "the quick brown fox"))
            raise ZeroDivisionError

    # In place of the module's name for subprocess, so that only the demo's own call is watched.
    monkeypatch.setattr(demo, "subprocess", types.SimpleNamespace(**vars(subprocess) | {"Popen": remember}))
    with pytest.raises(ZeroDivisionError):
        ask_then_fail()
    [timing], [process] = timings, processes
    assert process.returncode == 0
    assert timing.prompt_len > len(["the", "quick", "brown", "fox"])
    assert 2 <= timing.output_len <= 128
    assert timing.ttft_s > 0
    assert timing.decode_s > 0
    assert len(capsys.readouterr().out.splitlines()) >= 2  # the command that was started, then the answer
