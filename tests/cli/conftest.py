"""One tiny random checkpoint for all tests of the command line."""

import json

import pytest

from checkpoints import make_hf
from quick import QUICK_OPTIONS
from ridgeline.cli import main
from ridgeline.llm import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return str(make_hf(tmp_path_factory.mktemp("tiny") / "tiny-llama", "llama"))


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model, kv_memory=1_000_000, **QUICK_OPTIONS) as llm:
        yield llm


@pytest.fixture
def run_json(capsys):
    """Runs a command in this process; its status, and the one JSON object that it prints."""

    def run(*arguments):
        status = main([*arguments, "--json"])
        [line] = capsys.readouterr().out.splitlines()
        return status, json.loads(line)

    return run
