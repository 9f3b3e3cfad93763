"""How a checkpoint wants to be sampled: `generation_config.json`, or GGUF's `general.sampling.*`."""

from __future__ import annotations

from typing import Any

from ridgeline.model.checkpoint_fields import CheckpointFields, read_fields
from ridgeline.model.fields import short
from ridgeline.model.resolve import ModelFiles

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_GGUF_PREFIX = "general.sampling."
_GGUF_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}  # where they differ from ours

# Read elsewhere, or of no influence on which tokens come.
_HARMLESS = """
do_sample eos_token_id bos_token_id pad_token_id decoder_start_token_id transformers_version _from_model_config
use_cache cache_implementation cache_config max_cache_len return_dict_in_generate output_attentions
output_hidden_states output_scores output_logits compile_config disable_compile continuous_batching_config low_memory
prefill_chunk_size is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind use_mtp
speculation_type early_stopping length_penalty diversity_penalty num_beam_groups chat_format trust_remote_code
"""  # the last line: parts of searches that `num_beams` switches on, and what no version of transformers reads
# Values with which a setting does nothing, beside null, false, 0 and what is empty, which switch everything off.
_NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "typical_p": 1,
    "top_h": 1,
    "encoder_repetition_penalty": 1,
    "guidance_scale": 1,
    "max_length": 20,  # what older versions of transformers wrote when nobody had said anything
    f"{_GGUF_PREFIX}typ_p": 1,
    f"{_GGUF_PREFIX}penalty_last_n": -1,  # all tokens, as here
}
_ANY = -(10**9)  # in what range a value must lie, SamplingParams says

# Settings of what another one switches on: GGUF's key -> that one.
_PARTS = {"xtc_threshold": "xtc_probability", "mirostat_tau": "mirostat", "mirostat_eta": "mirostat"}


def generation_defaults(files: ModelFiles) -> dict[str, Any]:
    """The sampling that the checkpoint recommends, as fields of SamplingParams; empty when it says nothing.

    `do_sample: false` asks for greedy decoding: what narrows a draw is left out, a penalty is not. Raises
    CheckpointError for a value that is no number.
    """
    fields = _fields(files)
    gguf = files.kind == "gguf"
    keys = {name: _GGUF_PREFIX + _GGUF_NAMES.get(name, name) if gguf else name for name in _NAMES}
    found: dict[str, Any] = {}
    for name, key in keys.items():
        if fields.get(key) is not None:
            read = fields.count if name == "top_k" else fields.number
            found[name] = read(key, minimum=_ANY)
    if not gguf and fields.optional_flag("do_sample") is False:
        return {"temperature": 0.0} | {k: v for k, v in found.items() if k == "repetition_penalty"}
    return found


def unread_settings(files: ModelFiles) -> list[str]:
    """A line for each setting that would change what is generated and that is not read here: `key = value`."""
    values = _fields(files).values
    if files.kind == "gguf":
        values = {key: value for key, value in values.items() if key.startswith(_GGUF_PREFIX)}
        read = {_GGUF_PREFIX + _GGUF_NAMES.get(name, name) for name in _NAMES}
        read |= {_GGUF_PREFIX + part for part, whole in _PARTS.items() if not values.get(_GGUF_PREFIX + whole)}
        if values.get(f"{_GGUF_PREFIX}penalty_repeat", 1) == 1:
            read.add(f"{_GGUF_PREFIX}penalty_last_n")
    else:
        read = {*_NAMES, *_HARMLESS.split()}
    unread = {key: value for key, value in values.items() if key not in read and value}
    return [f"{key} = {short(value)}" for key, value in unread.items() if value != _NEUTRAL.get(key)]


def unread_notices(files: ModelFiles) -> list[str]:
    """What `unread_settings` finds, as sentences for the person who loads the model."""
    where = "the GGUF file" if files.kind == "gguf" else "generation_config.json"
    return [f"{where} sets {setting}: not read here, generation goes without it" for setting in unread_settings(files)]


def _fields(files: ModelFiles) -> CheckpointFields:
    if files.kind == "gguf":
        return CheckpointFields(files.gguf.metadata, str(files.path))
    directory = files.path if files.kind == "directory" else files.path.parent
    return read_fields(directory / "generation_config.json")
