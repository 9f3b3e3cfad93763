import json
import shutil
from pathlib import Path

from checkpoints import make_gguf
from ridgeline.cli import main
from ridgeline.cli.inspect import inspect_model


def test_a_directory(tiny_model, run_json):
    status, report = run_json("inspect", tiny_model)
    assert status == 0
    assert report["model"] == "tiny-llama"
    assert report["architecture"] == "llama"
    assert report["servable"] is True
    assert report["problems"] == []
    assert sum(row["parameters"] for row in report["formats"]) == report["parameters"]
    assert report["stored_bytes"] == 4 * report["parameters"]  # all F32
    assert "gguf" not in {row["dtype"] for row in report["runs_as"]}
    by_class = {row["weights"]: row for row in report["formats"]}
    assert by_class["q"] == {"weights": "q", "format": "F32", "tensors": 2, "parameters": 8192, "bytes": 32768}
    assert report["tokenizer"]["pre_tokenizer"] == "Digits + ByteLevel"
    assert report["tokenizer"]["eos"] == ["<|im_end|>"]
    assert report["chat_template"]["problems"] == []
    assert report["chat_template"]["sample"].startswith("<|im_start|>system\nYou are brief.<|im_end|>")


def test_a_quantized_gguf(tiny_model, tmp_path_factory):
    path = make_gguf(Path(tiny_model), tmp_path_factory.mktemp("gguf") / "tiny.gguf", "Q8_0")
    report = inspect_model(str(path))
    formats = {(row["weights"], row["format"]) for row in report["formats"]}
    assert ("q", "Q8_0") in formats
    assert ("attn_norm", "F32") in formats
    q = next(row for row in report["formats"] if row["weights"] == "q")
    assert q["bytes"] == q["parameters"] // 32 * 34
    runs_as = {row["dtype"]: row for row in report["runs_as"]}
    assert [runs_as[dtype]["arithmetic"] for dtype in ("bf16", "int8", "int4-g32", "gguf")] == [
        "bf16", "w8a8", "w4a8", "w8a8",
    ]  # fmt: skip
    assert report["stored_bytes"] < runs_as["gguf"]["bytes"] < 1.05 * report["stored_bytes"]  # rows in whole tiles


def test_what_is_broken_is_told_beside_the_rest(tiny_model, tmp_path, run_json):
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 100)
    settings = json.loads((broken / "tokenizer_config.json").read_text())
    (broken / "chat_template.jinja").unlink(missing_ok=True)
    settings["chat_template"] = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    (broken / "tokenizer_config.json").write_text(json.dumps(settings))
    status, report = run_json("inspect", str(broken))
    assert status == 0
    assert report["servable"] is False
    assert "model.safetensors" in report["problems"][0]
    assert report["parameters"] > 0
    assert report["chat_template"]["problems"] == [
        "system message is left out",
        "assistant message is left out",
        "add_generation_prompt changes nothing: the model is not told to answer",
    ]


def test_for_people(tiny_model, capsys):
    assert main(["inspect", tiny_model]) == 0
    printed = capsys.readouterr().out
    assert "can be served" in printed
    assert "2 of width 64, MLP 96" in printed
