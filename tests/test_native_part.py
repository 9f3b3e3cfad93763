"""The native part, or a clear line: left out, built for another Python, or not loadable here."""

import pytest

from ridgeline import native_part
from ridgeline.native_part import NativePartError


@pytest.fixture
def fails_with(monkeypatch):
    def fail(error, platform="linux"):
        def raise_it(name):
            raise error

        monkeypatch.setattr(native_part.importlib, "import_module", raise_it)
        monkeypatch.setattr(native_part.sys, "platform", platform)
        with pytest.raises(NativePartError) as raised:
            native_part.native_part()
        return raised.value

    return fail


def test_it_is_the_module():
    assert native_part.native_part().isa()


@pytest.mark.parametrize(
    ("platform", "way_out"), [("linux", "install the wheel for Linux"), ("darwin", "Docker"), ("win32", "WSL")]
)
def test_left_out(fails_with, monkeypatch, tmp_path, platform, way_out):
    monkeypatch.setattr(native_part, "__file__", str(tmp_path / "native_part.py"))
    error = fails_with(ModuleNotFoundError("No module named 'ridgeline._native'"), platform)
    assert (error.state, error.message) == ("missing", "the native part is not installed")
    assert way_out in error.hint
    assert "plan" in error.hint  # what works without


def test_built_for_another_python(fails_with, monkeypatch, tmp_path):
    (tmp_path / "_native.cpython-38-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(native_part, "__file__", str(tmp_path / "native_part.py"))
    error = fails_with(ModuleNotFoundError("No module named 'ridgeline._native'"))
    assert error.state == "foreign"
    assert "_native.cpython-38" in error.message


def test_not_loadable(fails_with):
    error = fails_with(ImportError("libc.so.6: version `GLIBC_2.35' not found"))
    assert error.state == "broken"
    assert "GLIBC_2.35" in error.message
