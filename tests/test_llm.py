"""The Python API on a tiny random model: what it returns, refuses and leaves behind."""

import os
import signal

import pytest

from checkpoints import EOS_TOKEN_ID, VOCAB_SIZE, make_hf
from quick import QUICK_OPTIONS
from ridgeline import LLM, Completion, SamplingParams
from ridgeline.errors import CapacityError, ConfigError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    return str(make_hf(tmp_path_factory.mktemp("tiny") / "tiny-llama", "llama"))


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, kv_memory=2_000_000, max_waiting=2, **QUICK_OPTIONS) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_left_behind(llm):
    yield
    stats = llm.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_pages_held) == (0, 0, 0)


def test_a_completion_tells_all(llm):
    [completion] = llm.generate("the quick brown fox", SamplingParams(temperature=0, max_tokens=5, logprobs=2))
    assert isinstance(completion, Completion)
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 5
    assert completion.text == llm.runtime.tokenizer.decode(completion.token_ids)
    assert completion.num_prompt_tokens == len(llm.tokenize("the quick brown fox"))
    assert completion.num_cached_tokens == 0
    assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
    for entry in completion.logprobs:
        assert len(entry.top) == 2
        assert entry.top[0] == (entry.token_id, entry.logprob)  # greedy takes the best
    metrics = completion.metrics
    assert metrics.queue_s + metrics.prefill_s + metrics.decode_s == pytest.approx(metrics.e2e_s)


def test_logprobs_only_when_asked_for(llm):
    assert llm.generate("the", GREEDY)[0].logprobs is None


def test_a_batch_answers_in_order_as_each_prompt_alone(llm):
    prompts = ["the quick", "what is the capital", [5, 6, 7], "over the lazy dog", "and", "run"]  # more than may wait
    together = llm.generate(prompts, GREEDY)
    assert [c.token_ids for c in together] == [llm.generate([p], GREEDY)[0].token_ids for p in prompts]


def test_a_flat_list_of_ids_is_one_prompt(llm):
    ids = llm.tokenize("the quick")
    assert [c.token_ids for c in llm.generate(ids, GREEDY)] == [llm.generate("the quick", GREEDY)[0].token_ids]


def test_without_params_the_checkpoint_recommends_and_silence_is_greedy(llm, monkeypatch):
    assert llm.default_params == SamplingParams(temperature=0)
    monkeypatch.setitem(llm.runtime.generation_defaults, "temperature", 0.7)
    monkeypatch.setitem(llm.runtime.generation_defaults, "top_p", 0.9)
    assert llm.default_params == SamplingParams(temperature=0.7, top_p=0.9)


def test_params_per_prompt(llm):
    lengths = [3, 1, 2]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    assert [len(c.token_ids) for c in llm.generate(["the"] * 3, params)] == lengths
    with pytest.raises(RequestError, match="2 SamplingParams for 3 prompts"):
        llm.generate(["the"] * 3, params[:2])


def test_nothing_in_nothing_out(llm):
    assert llm.generate([]) == []


def test_a_seed_gives_the_same_answer_among_others(llm):
    seeded = SamplingParams(seed=7, max_tokens=8, ignore_eos=True)
    alone = llm.generate("the quick", seeded)[0]
    among = llm.generate(["and", "the quick", "run"], [GREEDY, seeded, GREEDY])[1]
    other = llm.generate("the quick", SamplingParams(seed=8, max_tokens=8, ignore_eos=True))[0]
    assert among.token_ids == alone.token_ids != other.token_ids


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "user", "content": "what is <|im_end|>?"}]
    ids = llm.render(messages)
    assert ids.count(EOS_TOKEN_ID) == 1  # the template's own; the typed one stays text
    assert llm.chat(messages, GREEDY)[0].token_ids == llm.generate(ids, GREEDY)[0].token_ids
    assert len(llm.chat([messages, messages], GREEDY)) == 2


def test_a_stream_is_the_completion_in_pieces(llm):
    deltas = list(llm.stream("the quick", GREEDY))
    [completion] = llm.generate("the quick", GREEDY)
    assert "".join(delta.text for delta in deltas) == completion.text
    assert [t for delta in deltas for t in delta.token_ids] == completion.token_ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]


def test_leaving_a_stream_aborts_it(llm):
    stream = llm.stream("the quick", SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    stream.close()
    assert llm.engine.stats().finished["abort"] >= 1


def test_what_cannot_be_honoured_is_refused_and_takes_the_batch_along(llm):
    with pytest.raises(CapacityError, match="600 tokens"):
        llm.generate(["the", [3] * 600], SamplingParams(max_tokens=100, ignore_eos=True))
    with pytest.raises(RequestError, match=f"token id {VOCAB_SIZE}"):
        llm.generate([[VOCAB_SIZE]])
    with pytest.raises(RequestError, match="top_p"):
        llm.generate("the", SamplingParams(top_p=0))
    with pytest.raises(RequestError, match="empty"):
        llm.generate("")


def test_ctrl_c_ends_the_call_between_steps_and_frees_its_pages(llm, monkeypatch):
    step, num_steps = llm.engine.step, 0

    def interrupted_step(**options):
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(**options)

    monkeypatch.setattr(llm.engine, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the", "quick"], SamplingParams(max_tokens=100, ignore_eos=True))
    monkeypatch.undo()
    assert len(llm.generate("the", GREEDY)[0].token_ids) == 8  # and the LLM goes on


def test_an_unknown_option_names_the_nearest(tiny_model):
    with pytest.raises(ConfigError) as caught:
        LLM(tiny_model, max_batch_token=3)
    assert "max_batch_tokens" in caught.value.hint


def test_memory_that_the_system_refuses_is_told(tiny_model, monkeypatch):
    def refuse(*arguments, **options):
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("ridgeline.model.runtime.load_runtime", refuse)
    with pytest.raises(ConfigError, match=r"refuses memory .* GiB\) are free"):
        LLM(tiny_model)


def test_random_weights_need_a_config_only_and_take_ids(tiny_model):
    options = {"weights": "random", "kv_memory": 500_000, **QUICK_OPTIONS}
    with LLM(f"{tiny_model}/config.json", **options) as llm:
        assert len(llm.generate([[1, 2, 3]], GREEDY)[0].token_ids) == 8
        with pytest.raises(RequestError, match="no tokenizer"):
            llm.generate("text")
        with pytest.raises(RequestError, match="no chat template"):
            llm.chat([{"role": "user", "content": "hi"}])


def test_a_static_batch_waits_for_its_time(tiny_model):
    options = {"scheduler": "static", "static_wait_s": 0.01, "kv_memory": 500_000, **QUICK_OPTIONS}
    with LLM(tiny_model, **options) as llm:
        assert len(llm.generate("the", GREEDY)[0].token_ids) == 8


def test_a_refused_prompt_of_a_list_is_named(llm):
    with pytest.raises(RequestError, match=r"prompt\[1\]: the prompt holds token id -1") as caught:
        llm.generate([[5, 6], [-1]], GREEDY)
    assert caught.value.param == "prompt[1]"
    with pytest.raises(RequestError, match=r"^the prompt is empty"):
        llm.generate([[]], GREEDY)
