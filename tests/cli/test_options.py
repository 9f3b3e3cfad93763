import dataclasses

import pytest

import ridgeline.server.run
from ridgeline.cli import main
from ridgeline.cli.options import ENGINE_OPTIONS, MODEL_OPTIONS, SAMPLING_OPTIONS, SERVER_OPTIONS, sampling_params
from ridgeline.config import EngineConfig, ModelConfig, ServerConfig
from ridgeline.engine.request import SamplingParams

# Fields that no person sets on the command line.
INTERNAL = {"max_step_tokens", "stuck_after_s"}


@pytest.mark.parametrize(
    ("options", "kind", "extra"),
    [
        (MODEL_OPTIONS, ModelConfig, set()),
        (ENGINE_OPTIONS, EngineConfig, set()),
        (SERVER_OPTIONS, ServerConfig, {"api_key_file"}),
    ],
)
def test_every_setting_is_an_option_with_the_same_default(options, kind, extra):
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name not in INTERNAL}
    assert options.keys() - extra == fields.keys()
    for name, default in fields.items():
        assert options[name][1] == (list(default) if isinstance(default, tuple) else default), name


def test_sampling_options_are_sampling_params():
    assert SAMPLING_OPTIONS.keys() <= {field.name for field in dataclasses.fields(SamplingParams)}


def test_sampling_options_left_out_keep_the_models_defaults():
    given = dict.fromkeys(SAMPLING_OPTIONS) | {"temperature": 0.0, "stop": ["END"]}
    params = sampling_params(SamplingParams(temperature=0.7, top_k=5), given)
    assert params == SamplingParams(temperature=0.0, top_k=5, stop=["END"])


@pytest.fixture
def served(monkeypatch):
    """What `ridgeline serve` hands to the server, instead of running it."""
    calls = []

    def fake_serve(config, load, *, on_ready):
        calls.append(config)
        return 0

    monkeypatch.setattr(ridgeline.server.run, "serve", fake_serve)
    return calls


def test_serve_turns_flags_into_settings(served, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# people\nalice-key\n\n  bob-key \n")
    arguments = ["serve", "m", "--port", "0", "--host", "0.0.0.0", "--api-key", "first", "--api-key-file", str(keys)]
    assert main([*arguments, "--cors-origin", "http://a", "--served-model-name", "x", "--max-body", "1MiB"]) == 0
    [config] = served
    assert config == ServerConfig(
        host="0.0.0.0",
        port=0,
        api_keys=("first", "alice-key", "bob-key"),
        cors_origins=("http://a",),
        served_model_names=("x",),
        max_body_bytes=1 << 20,
    )


def test_a_key_file_without_keys_is_refused(served, tmp_path, capsys):
    (tmp_path / "keys").write_text("# nobody\n")
    assert main(["serve", "m", "--api-key-file", str(tmp_path / "keys")]) == 1
    assert "holds no API key" in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize(("flag", "takes_auto"), [("--dtype", True), ("--head-dtype", False)])
def test_an_unknown_format_is_refused_with_those_that_are_known(flag, takes_auto, capsys):
    for name in ("int9", *(() if takes_auto else ("auto",))):
        assert main(["serve", "m", flag, name, "--json"]) == 2
        message = capsys.readouterr().out
        assert f"has no dtype '{name}'" in message
        assert "int4-g32-zp" in message
        assert ("known: auto" in message) == takes_auto
