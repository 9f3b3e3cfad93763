"""The same weights for every engine: a Hugging Face directory in bf16, GGUF files and OpenVINO models made of it.

SmolLM2 comes from the bundled GGUF file through our own readers. Qwen3-0.6B's shape gets random weights and a made-up
vocabulary of the right size, so its figures speak of speed only. All matrices of a quantized copy, the embedding and
the output matrix too, are in that format (llama-quantize --pure, all layers of the OpenVINO model).
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from peerlib.environment import Environment
from ridgeline.model.catalog import catalog_entry
from ridgeline.model.resolve import load_spec, resolve_model
from ridgeline.model.spec import ModelSpec, from_config
from ridgeline.model.tokenizer import load_tokenizer
from ridgeline.model.weights import Float32, Weights, open_weights, random_weights

MODELS = {"smollm2": "SmolLM2-135M", "qwen3": "Qwen3-0.6B's shape, random weights"}
_RANDOM_SHAPE = "qwen3-0.6b"
_HF_NAMES = {
    "attn_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "embed": "model.embed_tokens", "final_norm": "model.norm",
}  # fmt: skip
_GGUF_NAMES = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    "embed": "token_embd", "final_norm": "output_norm",
}  # fmt: skip


def checkpoint(directory: Path, model: str) -> Path:
    """The Hugging Face directory of `model` under `directory`, made when it is not there."""
    parts = _random_shape if model == "qwen3" else _bundled
    return _made(directory / model / "hf", lambda making: _write_checkpoint(making, *parts()))


def gguf(directory: Path, model: str, kind: str, environment: Environment) -> Path:
    """`kind` is BF16, Q8_0 or Q4_0."""

    def make(making: Path) -> None:
        if kind == "BF16":
            write_gguf(making, checkpoint(directory, model))
        else:
            source = gguf(directory, model, "BF16", environment)
            _run(environment.llama_cpp("llama-quantize"), "--pure", source, making, kind)

    return _made(directory / model / f"{kind}.gguf", make)


def openvino(directory: Path, model: str, kind: str, environment: Environment) -> Path:
    """`kind` is int8 or int4. A group of 4-bit weights is 128 long, or the longest that divides a matrix's rows."""
    options = ["--task", "text-generation-with-past", "--weight-format", kind, "--sym"]
    if kind == "int4":
        options += ["--group-size", "128", "--group-size-fallback", "adjust", "--ratio", "1.0", "--all-layers"]

    def make(making: Path) -> None:
        program = environment.python("python").with_name("optimum-cli")
        _run(program, "export", "openvino", "-m", checkpoint(directory, model), *options, making)

    return _made(directory / model / f"openvino-{kind}", make)


def _made(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`; where it is not there, what `make` writes under another name, so that it is whole or not there."""
    if not path.exists():
        making = path.with_name(path.name + ".making")
        shutil.rmtree(making, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(making)
        making.rename(path)
    return path


def _run(*command: str | Path) -> None:
    finished = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")


def _bundled() -> tuple[dict[str, Any], ModelSpec, Weights, Tokenizer]:
    files = resolve_model("smollm2-135m")
    spec, tokenizer = load_spec(files), load_tokenizer(files)
    assert tokenizer is not None
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size, "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads, "head_dim": spec.head_dim, "hidden_act": "silu",
        "max_position_embeddings": spec.max_context_len, "rms_norm_eps": spec.norm_eps, "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tie_embeddings, "torch_dtype": "bfloat16",
        "bos_token_id": spec.bos_token_id, "eos_token_id": spec.eos_token_ids[0],
    }  # fmt: skip
    return config, spec, open_weights(files, spec), tokenizer._backend  # its vocabulary, merges and word rule


def _random_shape() -> tuple[dict[str, Any], ModelSpec, Weights, Tokenizer]:
    entry = catalog_entry(_RANDOM_SHAPE)
    assert entry is not None
    config = entry["config"]
    spec = from_config(config, source=_RANDOM_SHAPE)
    return config, spec, random_weights(spec), _made_up_tokenizer(spec.vocab_size)


def _made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level: a token for each byte, a few merges (llama.cpp wants some), and words that no text leads to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("\u0120", letter) for letter in "abcdefghijklmnopqrstuvwxyz"]  # a space before a word's first letter
    tokens = [*alphabet, *(first + second for first, second in merges)]
    tokens += [f"word{number}" for number in range(vocab_size - len(tokens))]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _write_checkpoint(
    directory: Path, config: dict[str, Any], spec: ModelSpec, weights: Weights, tokenizer: Tokenizer
) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_safetensors(directory / "model.safetensors", weights)


def _write_safetensors(path: Path, weights: Weights) -> None:
    """All in bf16, which the safetensors package does not know in numpy."""
    header, position = {}, 0
    for name, shape in weights.shapes.items():
        end = position + 2 * math.prod(shape)
        header[_foreign(name, _HF_NAMES, "model.layers")] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in weights.shapes:
            file.write(weights.read_bf16(name).tobytes())


def _foreign(name: str, names: Mapping[str, str], layers: str) -> str:
    """Our name of a weight (`embed`, `layers.3.q`) as others call it, by their names of its parts and of the layers."""
    *layer, part = name.split(".")
    return ".".join([*([layers, layer[1]] if layer else []), names[part], "weight"])


def write_gguf(path: Path, source: Path) -> None:
    """As llama.cpp converts a checkpoint: vectors in F32, matrices in BF16."""
    files = resolve_model(str(source))
    spec = load_spec(files)
    weights = open_weights(files, spec)
    writer = GGUFWriter(path, spec.architecture)
    _add_metadata(writer, spec)
    _add_vocabulary(writer, spec, json.loads((source / "tokenizer.json").read_text()))
    for name, shape in weights.shapes.items():
        values = weights.read(name)
        if spec.architecture == "llama" and name.rpartition(".")[2] in ("q", "k"):
            values = _adjacent_pairs(values, spec.head_dim)
        kind = GGMLQuantizationType.BF16 if len(shape) == 2 else GGMLQuantizationType.F32
        writer.add_tensor(_foreign(name, _GGUF_NAMES, "blk"), quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: GGUFWriter, spec: ModelSpec) -> None:
    writer.add_context_length(spec.max_context_len)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)


def _add_vocabulary(writer: GGUFWriter, spec: ModelSpec, declared: dict[str, Any]) -> None:
    ids = declared["model"]["vocab"] | {token["content"]: token["id"] for token in declared["added_tokens"]}
    special = {token["content"] for token in declared["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if spec.architecture == "llama" else "qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in declared["model"]["merges"]])
    writer.add_eos_token_id(spec.eos_token_ids[0])
    writer.add_add_bos_token(False)


def _adjacent_pairs(values: Float32, head_dim: int) -> Float32:
    """Rows (half, i) of each head as (i, half), the order in which llama.cpp stores llama's rotary pairs."""
    halves = values.reshape(-1, 2, head_dim // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
