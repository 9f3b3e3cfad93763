"""What the server says of cores that it wants and does not get."""

from __future__ import annotations

from ridgeline.server.contention import ContentionWatch, CoreTimes, core_times


def test_times_of_all_threads_and_of_the_hypervisor_are_read(tmp_path):
    files = {"self/task/7/schedstat": "3000000000 1000000000 9\n", "self/task/8/schedstat": "500000000 250000000 9\n"}
    for name, text in {**files, "stat": "cpu  9 9 9 9 9 9 9 250 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"}.items():
        (tmp_path / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / name).write_text(text)
    assert core_times(tmp_path) == CoreTimes(ran_s=3.5, waited_s=1.25, stolen_s=2.5)


def test_nothing_is_said_where_the_system_does_not_count(tmp_path):
    assert core_times(tmp_path) is None


def looks(watch: ContentionWatch, *spans: tuple[float, float]) -> list[bool]:
    """Whether something is told after each span of 10 s, in which threads ran and waited for so long."""
    ran_s = waited_s = 0.0
    told = []
    for ran, waited in ((0.0, 0.0), *spans):
        ran_s, waited_s = ran_s + ran, waited_s + waited
        told.append(watch.look(CoreTimes(ran_s, waited_s, 0.0), 10.0) is not None)
    return told[1:]


def test_waiting_is_told_once_and_that_it_is_over_once():
    busy, quiet = (10.0, 10.0), (20.0, 0.1)
    assert looks(ContentionWatch(), quiet, busy, busy, quiet, quiet, busy) == [False, True, False, True, False, True]


def test_the_message_has_the_numbers():
    watch = ContentionWatch()
    watch.look(CoreTimes(0.0, 0.0, 0.0), 10.0)
    message = watch.look(CoreTimes(10.0, 10.0, 3.0), 10.0)
    assert message is not None
    assert "got 1.0 of the 2.0 cores" in message
    assert "hypervisor took 0.3" in message


def test_an_idle_process_and_one_whose_threads_ended_say_nothing():
    assert looks(ContentionWatch(), (0.01, 0.5), (0.02, 0.02)) == [False, False]
    assert looks(ContentionWatch(), (10.0, 0.0), (-5.0, 20.0)) == [False, False]
