"""The thread pool: every task once, loop after loop, however many threads take turns on the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ridgeline import _native

DEADLINE_S = 60  # with threads that spun at each other this took minutes


@pytest.mark.parametrize(("threads", "tasks"), [(1, 8), (2, 8), (16, 8), (16, 64), (64, 3)])
def test_tiny_loops_are_done_once_and_in_order(threads, tasks):
    """In a process of its own: a pool that hangs cannot be ended otherwise."""
    trial = f"from ridgeline import _native; _native.stress_pool({threads}, jobs=200, loops=50, tasks={tasks})"
    subprocess.run([sys.executable, "-c", trial], check=True, timeout=DEADLINE_S)


def test_a_loop_may_have_no_tasks_and_a_job_no_loops():
    _native.stress_pool(3, jobs=20, loops=0, tasks=4)
    _native.stress_pool(3, jobs=20, loops=5, tasks=0)


def open_core(threads: int, niceness: int | None) -> object:
    shape = _native.ModelShape()
    shape.num_layers = shape.num_heads = shape.num_kv_heads = 1
    shape.head_dim, shape.vocab = 16, 16
    return _native.Executor(
        shape, "fp32", num_pages=2, max_rows=1, num_sampler_slots=1, threads=threads, niceness=niceness
    )


def own_threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of single threads is Linux's")
def test_niceness_is_of_the_compute_threads_alone():
    before, own = own_threads(), os.getpriority(os.PRIO_PROCESS, 0)
    core = open_core(2, niceness=19)
    started = own_threads() - before
    assert len(started) == 2
    while {os.getpriority(os.PRIO_PROCESS, thread) for thread in started} != {19}:
        os.sched_yield()  # until they have begun
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    del core


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of single threads is Linux's")
def test_a_niceness_that_the_system_refuses_is_an_error():
    trial = (
        "import os\n"
        "from ridgeline import _native\n"
        "from test_thread_pool import open_core\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "open_core(2, niceness=os.getpriority(os.PRIO_PROCESS, 0) - 1)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 1
    assert "the system refuses threads of niceness" in result.stderr


def test_an_input_that_is_overwritten_before_its_product_is_refused():
    """Threads prepare a product's input as late as in the product."""
    core = open_core(2, niceness=None)
    x, h, out = (core.add_buffer(16, "fp32", False) for _ in range(3))
    weight, matrix = core.add_vector(16), core.add_matrix(16, 16, "fp32")
    core.add_norm(x, weight, [h], 16)
    core.add_matmul(h, matrix, out, 0, -1, "store")
    core.add_matmul(h, matrix, x, 0, -1, "add")
    with pytest.raises(ValueError, match="has been overwritten since"):
        core.add_matmul(h, matrix, out, 0, -1, "store")
