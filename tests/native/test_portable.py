"""One wheel runs on every processor of its architecture: no code for a later instruction set is shared with the rest.

A function that two objects both define (an inline function, a template of the standard library) is kept once by the
linker, from whichever object comes first. If that one was compiled for AVX-512, the generic path ends in SIGILL.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OBJECTS = {  # the newest of each name
    path.name.removesuffix(".cpp.o"): path
    for path in sorted(ROOT.glob("build/cp*/native/CMakeFiles/*.dir/*.o"), key=lambda path: path.stat().st_mtime)
}
SHARED = re.compile(r"^\S* +[WVu] (.*)$", re.MULTILINE)  # weak and unique symbols, as nm shows them

pytestmark = [
    pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils"),
    pytest.mark.skipif(not OBJECTS, reason="no object files here: the native part was not built in this tree"),
]


def test_code_of_an_instruction_set_is_shared_with_nothing_else():
    shared = {}
    for name, path in OBJECTS.items():
        listed = subprocess.run(
            ["nm", "--demangle", "--defined-only", path], capture_output=True, text=True, check=True
        )
        shared[name] = set(SHARED.findall(listed.stdout))
    special = [name for name in OBJECTS if name.startswith("kernels_") and name != "kernels_generic"]
    assert special
    assert any(shared.values())
    for name in special:
        others = set().union(*(symbols for other, symbols in shared.items() if other != name))
        assert not shared[name] & others, f"{name}.cpp: give these a namespace of their own, or make them static"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="registers of x86")
def test_the_generic_objects_use_no_wide_registers():
    """What is not compiled for an instruction set of its own must run on the first x86-64 processors."""
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump of binutils")
    for name in ("kernels_generic", "executor", "sampler", "matrix"):
        code = subprocess.run(["objdump", "-d", OBJECTS[name]], capture_output=True, text=True, check=True).stdout
        assert not re.search(r"%[yz]mm", code), name
