"""Trains a small Llama in minutes on the CPU: a second model for quality figures, one that never was quantized.

The bundled SmolLM2 comes in 4 bits already, so what another 4-bit format costs it says little. This one is made from
the novels' training part alone, with a byte-level BPE vocabulary of its own and a fixed seed. Its widths are multiples
of 256, so that llama.cpp's K-quants apply to it.

    .venv/bin/python benchmarks/train_tiny.py [DIRECTORY] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from novels import cache_directory, training_text

VOCAB_SIZE = 2048
END_OF_TEXT = "<|endoftext|>"
CONTEXT = 1024
BATCH = 2  # sequences of a step, each forward and backward on its own: one of 1,024 tokens stays in the caches
STEPS = 500
WARM_UP = 50
PEAK_RATE, LAST_RATE = 2e-3, 2e-4
SEED = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=cache_directory() / "tiny-llama")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    text = training_text()
    tokenizer = train_tokenizer(text)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    model = LlamaForCausalLM(config())
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{num_parameters / 1e6:.1f}M parameters, {len(tokens):,} tokens of text, {arguments.steps} steps", flush=True
    )
    train(model, tokens, arguments.steps)
    save(model, tokenizer, arguments.directory)
    print(f"saved in {arguments.directory}")


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )


def train_tokenizer(text: str) -> Tokenizer:
    """Byte-level BPE that splits text as SmolLM2's does, so that GGUF has a name for it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split("\n\n"), trainer)
    return tokenizer


def train(model: LlamaForCausalLM, tokens: torch.Tensor, steps: int) -> None:
    """AdamW with warm-up and a cosine, on random places of the text. Matrix products in bf16, weights in fp32.

    One thread: the same seed gives the same model on any number of cores, and matrices this small gain little from
    more of them.
    """
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARM_UP, total_iters=WARM_UP)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - WARM_UP), eta_min=LAST_RATE)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [WARM_UP])
    start = time.monotonic()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = 0.0
        for place in torch.randint(len(tokens) - CONTEXT, (BATCH,)).tolist():
            loss += backward(model, tokens[place : place + CONTEXT + 1])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps:
            print(f"step {step}: loss {loss:.3f}, {time.monotonic() - start:.0f} s", flush=True)


def backward(model: LlamaForCausalLM, sequence: torch.Tensor) -> float:
    """Adds a sequence's share to the gradients; returns its share of the loss."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(sequence[None, :-1]).logits[0]
    loss = functional.cross_entropy(logits.float(), sequence[1:]) / BATCH
    loss.backward()
    return loss.item()


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Weights in bf16, as checkpoints are."""
    model.bfloat16().save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "model_max_length": CONTEXT}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
