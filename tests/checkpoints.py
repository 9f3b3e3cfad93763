"""Tiny random checkpoints of every family, as Hugging Face directories and as GGUF files.

The directories are written by transformers itself (`save_pretrained`) and the GGUF files by the gguf package, in the
way that llama.cpp converts, so a test that loads one checks the shapes that people really have on disk.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VOCAB_SIZE = 320
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
EOS_TOKEN_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRAINING_TEXT = [
    "the quick brown fox jumps over the lazy dog and then the other dogs run after the quick fox through the forest",
    "what is the capital of the country where the sun rises over the mountains and the rivers run to the sea",
]

DIMENSIONS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": EOS_TOKEN_ID, "pad_token_id": 0,
}  # fmt: skip
SIX_BITS = ("v_proj.weight", "down_proj.weight", "embed_tokens.weight", "lm_head.weight")  # in a Q4_K_M or Q5_K_M
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"head_dim": 16}),
    "llama3": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"head_dim": 16, "rope_parameters": LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"head_dim": 32}),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, {"head_dim": 16, "sliding_window": 8}),
}


def make_hf(
    directory: Path,
    family: str,
    *,
    tied: bool = False,
    sharded: bool = False,
    dtype: str = "float32",
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A checkpoint directory with config, weights, tokenizer and chat template. `overrides` go into the config."""
    config_class, model_class, features = FAMILIES[family]
    config = config_class(**(DIMENSIONS | features | {"tie_word_embeddings": tied} | overrides))
    model = model_class(config).eval()
    _randomize(model, seed)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(directory, max_shard_size="100KB" if sharded else "1GB")
    _save_tokenizer(directory)
    return directory


def make_gguf(
    hf_directory: Path,
    path: Path,
    quantization: str = "F32",
    *,
    part_tensors: int = 0,
    metadata: dict[str, float] | None = None,
) -> Path:
    """The checkpoint of `hf_directory` as one GGUF file; vectors stay F32, as llama.cpp keeps them. `Q4_K_M`
    and `Q5_K_M` are its mixes of K formats, in random blocks: other weights of the same shapes. `part_tensors`: in
    parts of so many tensors, of which the first is returned. `metadata` is added as 32-bit floats."""
    config = json.loads((hf_directory / "config.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(hf_directory.glob("*.safetensors")):
        tensors |= load_file(file)
    writer = gguf.GGUFWriter(path, config["model_type"], split_max_tensors=part_tensors)
    _add_metadata(writer, config)
    for key, value in (metadata or {}).items():
        writer.add_float32(key, value)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if quantization == 'F32' else 'MOSTLY'}_{quantization}"])
    _add_tokenizer(writer, hf_directory)
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if config["model_type"] == "llama" and any(proj in name for proj in (".q_proj.", ".k_proj.")):
            values = _interleave_pairs(values, config["head_dim"])
        if quantization.endswith("_K_M") and values.ndim == 2:
            kind = gguf.GGMLQuantizationType["Q6_K" if name.endswith(SIX_BITS) else quantization.removesuffix("_M")]
            data = _random_blocks(kind, values.shape, seed=len(name))
        else:
            kind = gguf.GGMLQuantizationType[quantization if values.ndim == 2 else "F32"]
            data = gguf.quants.quantize(values, kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    if config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(hf_directory))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0] if part_tensors else path


def _random_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, int], seed: int) -> np.ndarray:
    """A matrix in blocks of random bytes, of weights around 0 and of order 1 / 16."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    outputs, inner = shape
    blocks = np.random.default_rng(seed).integers(0, 256, (outputs, inner // block_len, block_bytes), np.uint8)
    numbers = {"Q4_K": [2.4e-4, 2.4e-4 * 7.5], "Q5_K": [1.2e-4, 1.2e-4 * 15.5], "Q6_K": [7e-5]}[kind.name]
    scales = np.array(numbers, np.float16).view(np.uint8)
    begin = block_bytes - 2 if kind.name == "Q6_K" else 0
    blocks[..., begin : begin + len(scales)] = scales
    return blocks.reshape(outputs, -1)


def _randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights large enough that every op matters to the logits: norms away from 1, biases away from 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                parameter.copy_(noise if "embed" in name else noise * parameter.shape[1] ** -0.5)
            else:
                parameter.copy_(0.2 * noise + (1.0 if "norm" in name else 0.0))


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def _save_tokenizer(directory: Path) -> None:
    _tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "add_bos_token": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, hf_directory: Path) -> None:
    bpe = json.loads((hf_directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    kinds = [gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in bpe["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleave_pairs(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Half-split rotary rows to llama.cpp's adjacent pairs: row (half, i) of a head becomes row (i, half)."""
    halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _rope_factors(hf_directory: Path) -> np.ndarray:
    """Divisors of the unscaled rotary frequencies, in whose form llama.cpp keeps Llama 3's scaling: [head_dim / 2]"""
    config = transformers.AutoConfig.from_pretrained(hf_directory)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    return (config.rope_parameters["rope_theta"] ** -exponents / scaled).numpy()


def _gguf_name(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` -> `blk.0.attn_q.weight`"""
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"),
        ("model.layers", "blk"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"), ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name
