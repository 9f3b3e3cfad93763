"""Imports point one way, lower layers know nothing of higher ones."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import ridgeline

ROOT = Path(ridgeline.__file__).parent

# The part of `model` that describes a checkpoint lies below `cost`.
DESCRIPTIONS = {
    f"model.{name}"
    for name in (
        "spec",
        "anatomy",
        "catalog",
        "families",
        "gguf",
        "gguf_config",
        "gguf_parts",
        "gguf_spec",
        "hub",
        "ollama",
        "resolve",
        "rope",
        "safetensors",
        "stored",
    )
}

# area -> what it may import of ridgeline, besides itself. A name with a dot is one module of an area.
ALLOWED = {
    "errors": set(),
    "units": {"errors"},
    "config": {"errors"},
    "native_part": {"errors"},
    "quant": {"errors", "config"},
    "cost": {"errors", "config", "units", "native_part", "quant", *DESCRIPTIONS},
    "engine": {"errors", "config", "units", "cost"},
    "model": {"errors", "config", "units", "native_part", "quant", "cost", "executors", "engine.plan"},
    "executors": {"errors", "config", "units", "quant", "model", "cost", "engine.plan"},
    "doctor": {"errors", "config", "units", "native_part", "cost", "model", "measure"},
    "server": {"errors", "config", "units", "cost", "engine", "model"},
}


def area(module: str) -> str:
    return module.split(".")[0]


def imports_of(path: Path) -> set[str]:
    """Modules of ridgeline that a file imports when it runs, and the roots of all others."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.count(".") < 2:
                found |= {f"{node.module}.{alias.name}" for alias in node.names if _is_module(node.module, alias.name)}
    return found


def _is_module(package: str, name: str) -> bool:
    folder = ROOT.parent.joinpath(*package.split("."))
    return (folder / name).is_dir() or (folder / f"{name}.py").exists()


def files_of(name: str) -> list[Path]:
    single = ROOT / f"{name}.py"
    return [single] if single.exists() else sorted((ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("name", ALLOWED)
def test_an_area_imports_only_what_lies_below_it(name: str) -> None:
    allowed = ALLOWED[name] | {name}
    files = files_of(name)
    assert files
    for path in files:
        for module in imports_of(path):
            if module.startswith("ridgeline."):
                inner = module.removeprefix("ridgeline.")
                is_allowed = area(inner) in allowed or any(f"{inner}.".startswith(f"{a}.") for a in allowed)
                assert is_allowed or _is_package_of_allowed(inner, allowed), f"{path.relative_to(ROOT)}: {module}"


def test_descriptions_reach_nothing_that_runs_a_model() -> None:
    """What `cost` may import of `model` imports only descriptions, and what those are written with."""
    helpers = {
        f"model.{name}" for name in ("blocks", "fields", "config_values", "known_keys", "rope_scaling", "tensors")
    }
    helpers.add("model")
    for name in DESCRIPTIONS:
        paths = files_of(name.replace(".", "/"))
        assert paths, f"{name} is no module"
        for module in {m for path in paths for m in imports_of(path) if m.startswith("ridgeline.model")}:
            inner = module.removeprefix("ridgeline.")
            assert inner in helpers or any(f"{inner}.".startswith(f"{d}.") for d in DESCRIPTIONS), f"{name}: {inner}"


def _is_package_of_allowed(inner: str, allowed: set[str]) -> bool:
    """`from ridgeline.model import spec` names the package too."""
    return any(a.startswith(f"{inner}.") for a in allowed)


def test_the_engine_knows_no_tensor_library_but_numpy() -> None:
    roots = {area(module) for path in files_of("engine") for module in imports_of(path)}
    assert roots - set(sys.stdlib_module_names) <= {"numpy", "ridgeline"}


def test_measure_imports_nothing_of_the_engine() -> None:
    for path in files_of("measure"):
        assert not [m for m in imports_of(path) if m.startswith(("ridgeline.engine", "ridgeline.server"))], path


def test_every_invariant_names_a_test_that_exists() -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs" / "invariants.md").read_text()
    named = [word for word in text.replace("`", " ").split() if word.startswith("tests/")]
    assert len(named) >= 7
    for reference in named:
        path, *names = reference.rstrip(".,;:)").split("::")
        assert (root / path).exists(), reference
        source = (root / path).read_text() if names else ""
        for name in names:
            assert f"def {name.split('[')[0]}(" in source or f"class {name}" in source or f"\n{name} = " in source, (
                reference
            )
