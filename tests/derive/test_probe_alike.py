"""What is said of earlier runs that a probe is not compared with."""

from typing import Any

from kvdiag.derive.probe_alike import identity, set_apart


def run(host: str = "a", iterations: int = 200, **others: Any) -> dict[str, Any]:
    ends = {"peer_host": "b", "local_device": "rxe0 (chosen)", "peer_device": None}
    settings = {"iterations": iterations, "sizes": [64]}
    return {"schema": "kvdiag.probe/1", "host": host, "settings": settings, "ends": ends, **others}


def test_runs_alike_have_nothing_that_sets_them_apart() -> None:
    assert identity(run()) == identity(run(time="later", results=[1]))
    assert set_apart(run(), [run(time="later"), run()]) == ""


def test_what_differs_is_named_of_the_run_that_is_nearest() -> None:
    runs = [run("vm", 300), run("a", 300), run("vm", 7)]
    assert set_apart(run(), runs) == "3 made otherwise, the nearest with settings.iterations 300, here 200"
    assert set_apart(run(), [run("vm", 300)]).endswith("host vm, here a; settings.iterations 300, here 200")


def test_failed_runs_are_counted_and_a_file_of_another_command_is_told() -> None:
    other = {"schema": "kvdiag.probe-kv/1", "host": "a", "settings": {"rounds": 5, "layers": 2}, "ends": None}
    said = set_apart(run(), [run(failure="lost the agent"), other])
    assert said.startswith("1 failed, 1 made otherwise, the nearest with schema kvdiag.probe-kv/1, here kvdiag.probe/1")
    assert said.endswith(" more")
