"""Runs the tests on the newest versions (.venv-newest) and says what of a failure is the newest versions' doing.

What fails there is run again on the locked versions: what passes on them fails for a newer package, and the packages
that differ are listed; what fails on both is a fault of the code. Arguments go to pytest. Exit status 1 when anything
failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED, NEWEST = ROOT / ".venv", ROOT / ".venv-newest"


def main() -> None:
    failed = failures(NEWEST, sys.argv[1:] or ["-m", "not slow"])
    print("\nPackages newer than the lock: " + (", ".join(differences()) or "none"))
    if not failed:
        print("The newest versions pass.")
        return
    print(f"{len(failed)} failed on the newest versions; the same tests on the locked ones:")
    on_both = failures(LOCKED, sorted(failed))
    for test in sorted(failed):
        print(f"{'fails on both' if test in on_both else 'fails on the newest only'}: {test}")
    sys.exit(1)


def failures(environment: Path, arguments: list[str]) -> set[str]:
    """Node ids of what fails under pytest of `environment`: tests, and files that can't be collected."""
    with tempfile.TemporaryDirectory() as cache:  # where pytest notes what failed, for its --last-failed
        pytest = [environment / "bin" / "python", "-m", "pytest", "-o", f"cache_dir={cache}"]
        status = subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
        failed = Path(cache, "v", "cache", "lastfailed")
        if status not in (0, 1, 2) or (status and not failed.exists()):
            sys.exit(f"pytest in {environment.name} ended with status {status}")
        return set(json.loads(failed.read_text())) if status else set()


def differences() -> list[str]:
    locked, newest = versions(LOCKED), versions(NEWEST)
    return [
        f"{name} {locked.get(name, 'absent')} -> {newest.get(name, 'absent')}"
        for name in sorted(locked | newest)
        if locked.get(name) != newest.get(name)
    ]


def versions(environment: Path) -> dict[str, str]:
    pip = [environment / "bin" / "python", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listing = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    return {package["name"].lower(): package["version"] for package in json.loads(listing)}


if __name__ == "__main__":
    main()
