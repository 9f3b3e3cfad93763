from __future__ import annotations

from scripted_server import BOS, CONTEXT_LEN, EOS, LiveServer


def test_tokenize_shows_what_a_prompt_becomes(server: LiveServer) -> None:
    answer = server.post("/tokenize", {"model": "scripted", "prompt": "hé<|end|>"}).json()
    assert answer == {"count": 5, "max_model_len": CONTEXT_LEN, "tokens": [BOS, *"hé".encode(), EOS]}
    bare = server.post("/tokenize", {"prompt": "h", "add_special_tokens": False, "return_token_strs": True}).json()
    assert (bare["tokens"], bare["token_strs"]) == ([*b"h"], ["h"])


def test_tokenize_counts_as_the_answer_does(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "say:a"}]
    count = server.post("/tokenize", {"messages": messages}).json()["count"]
    answer = server.post("/v1/chat/completions", {"model": "scripted", "messages": messages}).json()
    assert answer["usage"]["prompt_tokens"] == count


def test_detokenize_spells_control_tokens(server: LiveServer) -> None:
    assert server.post("/detokenize", {"tokens": [BOS, *"hé".encode(), EOS]}).json() == {"prompt": "<|start|>hé<|end|>"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_unknown_model_is_refused_here_too(server: LiveServer) -> None:
    assert server.post("/tokenize", {"model": "other", "prompt": "a"}).status_code == 404
