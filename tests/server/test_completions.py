from __future__ import annotations

from typing import Any

import pytest

from scripted_server import BOS, CONTEXT_LEN, CONTROL, EOS, LiveServer, completion, events_of

PATH = "/v1/completions"


def texts(server: LiveServer, prompt: Any, **fields: Any) -> list[str]:
    response = server.post(PATH, completion(prompt, **fields))
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("say:a", ["a"]),
        (["say:a", "say:b"], ["a", "b"]),
        ([*b"say:c"], ["c"]),
        ([[*b"say:d"], [*b"say:e"]], ["d", "e"]),
    ],
)
def test_prompt_shapes(server: LiveServer, prompt: Any, expected: list[str]) -> None:
    assert texts(server, prompt) == expected


def test_choices_are_ordered_by_prompt_then_n(server: LiveServer) -> None:
    assert texts(server, ["say:a", "say:b"], n=2) == ["a", "a", "b", "b"]


def test_a_prompt_in_a_list_answers_as_alone(server: LiveServer) -> None:
    assert texts(server, ["x", "babble"], n=2, seed=5)[2:] == texts(server, "babble", n=2, seed=5)


def test_sixteen_tokens_unless_said_otherwise(server: LiveServer) -> None:
    assert [len(text) for text in texts(server, "babble")] == [16]
    assert [len(text) for text in texts(server, "babble", max_tokens=20)] == [20]
    assert [len(text) for text in texts(server, [97] * 502)] == [10]  # what the context has left


def test_control_text_is_parsed(server: LiveServer) -> None:
    usage = server.post(PATH, completion("<|start|>say:a")).json()["usage"]  # and there is one BOS only
    assert usage["prompt_tokens"] == 1 + len("say:a")


def test_echo_with_logprobs(server: LiveServer) -> None:
    answer = server.post(PATH, completion("say:é", echo=True, logprobs=1)).json()["choices"][0]
    assert answer["text"] == "say:éé"
    logprobs = answer["logprobs"]
    assert logprobs["tokens"][:5] == ["<|start|>", "s", "a", "y", ":"]
    assert logprobs["token_logprobs"] == [None, *[-9999.0] * 6, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"a": -1.0, "s": -9999.0}
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3, 4, 5, 5, 6, 6]


def test_offsets_lead_to_the_tokens_in_the_text(server: LiveServer) -> None:
    """Whichever control tokens the text spells: those that the prompt spelled, and all with skip_special_tokens off."""
    for prompt in ("<|start|>say:é<|end|>!", "say:é<|end|>!", [BOS, *b"say:x", EOS, *b"y"]):
        for skip in (True, False):
            fields = {"echo": True, "logprobs": 0, "skip_special_tokens": skip, "ignore_eos": True, "max_tokens": 5}
            choice = server.post(PATH, completion(prompt, **fields)).json()["choices"][0]
            text, tokens = choice["text"], choice["logprobs"]["tokens"]
            found = [text[o:].startswith(t) for t, o in zip(tokens, choice["logprobs"]["text_offset"], strict=True)]
            hidden = [t in CONTROL.values() or t.startswith("bytes:") for t in tokens]
            assert all(here or gone for here, gone in zip(found, hidden, strict=True)), (prompt, skip, choice)
            if not skip:
                assert found[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_can_be_scored_without_an_answer(server: LiveServer, stream: bool) -> None:
    """As evaluation harnesses ask for it."""
    prompt = "x" * (CONTEXT_LEN - 1)  # with BOS, all of the context
    scoring = {"echo": True, "logprobs": 1, "max_tokens": 0}
    response = server.post(PATH, completion(prompt, **scoring, stream=stream))
    assert response.status_code == 200, response.text
    [choice] = (events_of(response)[0] if stream else response.json())["choices"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    assert choice["logprobs"]["token_logprobs"] == [None, *[-9999.0] * len(prompt)]
    if not stream:
        assert response.json()["usage"]["completion_tokens"] == 0
    assert server.wait_idle()["running"] == 0
    refused = server.post(PATH, completion("x", echo=True, max_tokens=0))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_echo_and_offsets_in_a_stream(server: LiveServer) -> None:
    fields = {"echo": True, "logprobs": 0, "n": 2}
    whole = server.post(PATH, completion("say:xyz", **fields)).json()["choices"]
    *chunks, _done = events_of(server.post(PATH, completion("say:xyz", stream=True, **fields)))
    for choice in whole:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"] == "say:xyzxyz"
        for key, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][key]] == values
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "stop"


def test_echo_of_token_ids_is_their_text(server: LiveServer) -> None:
    assert texts(server, [BOS, *b"say:a"], echo=True) == ["say:aa"]
    assert texts(server, [BOS, *b"say:a"], echo=True, skip_special_tokens=False) == ["<|start|>say:aa"]


def test_stops_by_token_and_end_token(server: LiveServer) -> None:
    answer = server.post(PATH, completion("say:abc", stop_token_ids=[98])).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == ("a", "stop", 98)
    answer = server.post(PATH, completion("say:abc", ignore_eos=True, max_tokens=6)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


def test_usage_counts_each_prompt_once(server: LiveServer) -> None:
    usage = server.post(PATH, completion(["say:a", "say:bc"], n=2)).json()["usage"]
    assert usage["prompt_tokens"] == len("say:a") + len("say:bc") + 2
    assert usage["completion_tokens"] == 2 * (2 + 3)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
