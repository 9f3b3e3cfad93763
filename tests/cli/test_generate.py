"""`ridgeline generate`, run in this process on a tiny random model."""

import dataclasses
import io
import json
import sys

import pytest

from quick import QUICK
from ridgeline import SamplingParams
from ridgeline.cli import batch, main
from ridgeline.cost.memory import PAGE_SIZE
from ridgeline.server.fields import CHAT, COMPLETION, SAMPLING

GREEDY = ["--temperature", "0", "--max-tokens", "6", "--ignore-eos"]
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPT = "the quick brown fox jumps over the lazy dog and runs away"


def chat_ids(llm, text, system=None):
    before = [{"role": "system", "content": system}] if system else []
    return llm.render([*before, {"role": "user", "content": text}])


def test_streams_the_answer_through_the_chat_template(tiny_model, llm, capsys):
    assert main(["generate", tiny_model, PROMPT, *GREEDY, *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out == llm.generate(chat_ids(llm, PROMPT), PARAMS)[0].text + "\n"
    assert captured.err.startswith("(cut: ")


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_person_at_a_terminal_is_told_where_packed_weights_are_kept(
    tiny_model, tmp_path, capsys, monkeypatch, at_terminal
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal)
    place = ["--packed-dir", str(tmp_path)]
    assert main(["generate", tiny_model, PROMPT, *GREEDY, *QUICK, *place]) == 0
    [packed] = tmp_path.iterdir()
    assert (f"are kept in {packed}" in capsys.readouterr().err) == at_terminal
    assert main(["generate", tiny_model, PROMPT, *GREEDY, *QUICK, *place]) == 0
    assert "note: " not in capsys.readouterr().err


def test_system_message(tiny_model, llm, capsys):
    assert main(["generate", tiny_model, PROMPT, "--system", "run", *GREEDY, *QUICK]) == 0
    assert capsys.readouterr().out == llm.generate(chat_ids(llm, PROMPT, "run"), PARAMS)[0].text + "\n"


def test_raw_prompt_from_stdin(tiny_model, llm, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert main(["generate", tiny_model, "-", "--raw", *GREEDY, *QUICK]) == 0
    assert capsys.readouterr().out == llm.generate(PROMPT, PARAMS)[0].text + "\n"


def test_json(tiny_model, llm, run_json):
    status, printed = run_json("generate", tiny_model, PROMPT, "--raw", "--logprobs", "1", *GREEDY, *QUICK)
    [expected] = llm.generate(PROMPT, PARAMS)
    assert status == 0
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids
    assert printed["finish_reason"] == "length"
    assert printed["model"] == "tiny-llama"
    assert printed["metrics"]["num_output_tokens"] == 6
    assert [entry["token_id"] for entry in printed["logprobs"]] == expected.token_ids


def test_a_refused_prompt_is_an_error_object(tiny_model, run_json):
    status, printed = run_json("generate", tiny_model, "the " * 600, *GREEDY, *QUICK)
    assert status == 1
    assert printed["error"]["code"] == "context_length_exceeded"
    assert "512" in printed["error"]["message"]


LINES = [
    {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True},
    "not json at all",
    {"prompt": PROMPT, "max_token": 3},
    {"prompt": "the " * 600},
    {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0},
    {"prompt": [3, 4, 5]},
    {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "max_completion_tokens": 6,
            "ignore_eos": True,
        },
    },
    {"custom_id": "b", "url": "/v1/completions", "body": {"prompt": PROMPT, "temperature": 0, "ignore_eos": True}},
    {"custom_id": "c", "body": {"prompt": PROMPT, "n": 2}},
]


@pytest.fixture
def batch_file(tmp_path):
    lines = [line if isinstance(line, str) else json.dumps(line) for line in LINES]
    path = tmp_path / "in.jsonl"
    path.write_text("\n\n".join(lines) + "\n")
    return path


def test_batch_file(tiny_model, llm, batch_file, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    flags = ["--max-tokens", "6", "--ignore-eos", *QUICK]
    assert main(["generate", tiny_model, "--batch-file", str(batch_file), "--out", str(out), *flags]) == 0
    assert capsys.readouterr().err == "9 requests, 4 failed\n"
    results = [json.loads(line) for line in out.read_text().splitlines()]
    own, envelopes = results[:6], results[6:]
    [in_chat] = llm.generate(chat_ids(llm, PROMPT), PARAMS)

    assert own[0]["token_ids"] == in_chat.token_ids[:3]
    assert own[1]["error"]["code"] == "invalid_json"
    assert "line 3" in own[1]["error"]["message"]
    assert "max_tokens" in own[2]["error"]["hint"]
    assert own[3]["error"]["code"] == "context_length_exceeded"
    assert own[4]["text"] == in_chat.text
    assert own[5]["token_ids"] == llm.generate([3, 4, 5], PARAMS)[0].token_ids
    assert [result["index"] for result in own] == [0, 2, 4, 6, 8, 10]  # lines of the file

    assert [result["custom_id"] for result in envelopes] == ["a", "b", "c"]
    body = envelopes[0]["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": in_chat.text, "refusal": None}
    assert body["usage"]["completion_tokens"] == 6
    num_prompt = body["usage"]["prompt_tokens"]
    num_hit = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert num_hit == (num_prompt - 1) // PAGE_SIZE * PAGE_SIZE > 0, "llm had it before"
    openai_default = dataclasses.replace(PARAMS, max_tokens=16)
    assert envelopes[1]["response"]["body"]["choices"][0]["text"] == llm.generate(PROMPT, openai_default)[0].text
    assert envelopes[2]["response"] is None
    assert envelopes[2]["error"]["message"] == "n is 2; in this file it can only be 1"


def run_lines(tiny_model, tmp_path, capsys, *lines):
    """The answers to a batch file of these lines."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["generate", tiny_model, "--batch-file", str(path), *QUICK]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_envelope_answers_with_the_logprobs_it_asks_for(tiny_model, llm, tmp_path, capsys):
    common = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "logprobs": True, "top_logprobs": 2, **common}
    raw = {"prompt": PROMPT, "logprobs": 2, **common}
    answers = run_lines(tiny_model, tmp_path, capsys, {"custom_id": "a", "body": chat}, {"custom_id": "b", "body": raw})
    in_chat, in_completion = (answer["response"]["body"]["choices"][0]["logprobs"] for answer in answers)
    params = dataclasses.replace(PARAMS, max_tokens=3, logprobs=2)
    [expected] = llm.generate(chat_ids(llm, PROMPT), params)
    assert [token["logprob"] for token in in_chat["content"]] == [token.logprob for token in expected.logprobs]
    assert [len(token["top_logprobs"]) for token in in_chat["content"]] == [2, 2, 2]
    [expected] = llm.generate(PROMPT, params)
    assert in_completion["token_logprobs"] == [token.logprob for token in expected.logprobs]
    assert answers[0]["response"]["body"]["id"].startswith("chatcmpl-")


def test_a_custom_id_is_answered_once(tiny_model, tmp_path, capsys):
    body = {"prompt": PROMPT, "max_tokens": 1}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"custom_id": name, "body": body}) + "\n" for name in ("a", "b", "a")))
    main(["generate", tiny_model, "--batch-file", str(path), *QUICK])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["error"] is None for answer in answers] == [True, True, False]
    assert answers[2]["error"]["message"] == "line 3: line 1 has the custom_id 'a' too"


MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ({"custom_id": "a", "body": {"messages": MESSAGES, "top_logprobs": 2}}, "top_logprobs needs logprobs"),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 6}, "but max_completion_tokens is 6"),
        ({"custom_id": "a", "url": "/v1/embeddings", "body": {"prompt": PROMPT}}, "line 1: url is '/v1/embeddings'"),
        ({"custom_id": "a", "url": "/v1/completions", "body": {"messages": MESSAGES}}, "line 1: url is"),
        ({"custom_id": "a", "method": "GET", "body": {"prompt": PROMPT}}, "line 1: method is 'GET'"),
        ({"body": {"prompt": PROMPT}}, "line 1: custom_id is None"),
        ({"custom_id": "a", "priority": 1, "body": {"prompt": PROMPT}}, "no field 'priority' in a batch request"),
        ({"prompt": PROMPT, "prompt_cache_retention": "24h"}, "prompt_cache_retention is '24h'"),
        ({"messages": [{"role": "tool", "content": "4", "tool_call_id": "c"}]}, "messages[0].role needs"),
    ],
)
def test_nothing_in_a_line_is_ignored(tiny_model, tmp_path, capsys, line, word):
    [answer] = run_lines(tiny_model, tmp_path, capsys, line)
    assert word in answer["error"]["message"]


def test_every_field_of_the_server_is_honoured_or_refused_in_a_file():
    read = {"model", "messages", "prompt", "chat_template_kwargs", "max_completion_tokens", "logprobs", "top_logprobs"}
    assert {*CHAT.honoured, *COMPLETION.honoured} == {*SAMPLING, *batch.NEUTRAL, *read}


@pytest.mark.parametrize(
    ("field", "value"), [("model", "other"), ("stream", True), ("echo", True), ("priority", 1), ("n", 2)]
)
def test_what_a_batch_cannot_honour_is_refused_by_name(tiny_model, tmp_path, capsys, field, value):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"prompt": PROMPT, field: value}))
    assert main(["generate", tiny_model, "--batch-file", str(path), *QUICK]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["error"]["message"].startswith(f"{field} is {value!r}; ")


def test_a_batch_on_stdout_is_jsonl_and_nothing_else(tiny_model, batch_file, capsys):
    assert main(["generate", tiny_model, "--batch-file", str(batch_file), "--max-tokens", "2", *QUICK]) == 0
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == len(LINES)


def test_a_batch_with_json_prints_its_summary(tiny_model, batch_file, tmp_path, run_json):
    out = str(tmp_path / "out.jsonl")
    batch = ["--batch-file", str(batch_file), "--out", out, "--max-tokens", "2"]
    assert run_json("generate", tiny_model, *batch, *QUICK) == (0, {"requests": 9, "failed": 4, "out": out})


def test_lines_that_are_no_text_fail_alone(tiny_model, tmp_path, capsys):
    source = tmp_path / "in.jsonl"
    good = json.dumps({"prompt": PROMPT, "max_tokens": 2}).encode()
    deep, half = b"[" * 100_000, b'{"prompt": "\xff"}'
    source.write_bytes(b"\n".join([half, deep, good]))
    assert main(["generate", tiny_model, "--batch-file", str(source), *QUICK]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["error" in answer for answer in answers] == [True, True, False]


def test_the_batch_file_is_not_overwritten(tiny_model, tmp_path, run_json):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n')
    status, printed = run_json("generate", tiny_model, "--batch-file", str(source), "--out", str(source), *QUICK)
    assert (status, printed["error"]["code"]) == (1, "config_error")
    assert source.read_text() == '{"prompt": "x"}\n'


def test_bytes_that_are_no_text_are_refused(tiny_model, capsys):
    assert main(["generate", tiny_model, "\udcff", "--raw", *QUICK]) == 1
    assert main(["generate", tiny_model, "\udcff", *QUICK]) == 1
    assert "which is no text" in capsys.readouterr().err
