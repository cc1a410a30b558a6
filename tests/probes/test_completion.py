import pytest

from kvdiag_probes.completion import STATUSES, completion_error, leading


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([], None), ([0, 0], None), ([0, 12, 5, 5], 12), ([5, 5, 10], 10), ([5, 5], 5), ([10, 12], 10)],
)
def test_the_first_error_leads_and_a_flush_never_does(statuses: list[int], expected: int | None) -> None:
    assert leading(statuses) == expected


def test_causes_are_ranked_and_a_next_step_is_given() -> None:
    error = completion_error("RDMA WRITE", "10.0.0.2:18580", 10, vendor=0x88)
    assert str(error).startswith(
        "10.0.0.2:18580: RDMA WRITE failed with REM_ACCESS_ERR (10, vendor 0x88): (1) the remote key"
    )
    assert "; next: " in str(error) and "\n" not in str(error)
    assert error.status == 10 and error.exit_code == 69


def test_what_else_is_known_narrows_the_causes_of_a_retry_error() -> None:
    down = completion_error("RDMA READ", "b:1", 12, local_port="rxe0/1 is DOWN")
    assert "RETRY_EXC_ERR (12): the local port rxe0/1 is DOWN; next:" in str(down)
    gone = completion_error("RDMA READ", "b:1", 12, control="refuses")
    assert "the agent is gone" in str(gone) and "(2)" not in str(gone)
    alive = completion_error("RDMA READ", "b:1", 12, control="answers")
    assert "process or host is gone" not in str(alive) and "(1) the path drops the packets" in str(alive)
    silent = completion_error("RDMA READ", "b:1", 12, control="silent")
    assert "(1) the peer's host is gone" in str(silent)


def test_an_invalid_request_amid_losses_is_blamed_on_these_first() -> None:
    plain = str(completion_error("RDMA WRITE", "b:1", 9, seen=("port a/1 is ACTIVE", "no error counter moved")))
    assert "(1) the peer's queue pair does not allow" in plain and "next: check the peer's queue pair" in plain
    lossy = str(completion_error("RDMA WRITE", "b:1", 9, seen=("port a/1 is ACTIVE", "completer_retry_err +2")))
    assert "(1) packets were lost, and the peer took what was sent again" in lossy
    assert "(2) the peer's queue pair does not allow" in lossy and "next: look for loss on the path first; " in lossy


def test_an_unknown_status_is_still_one_line() -> None:
    assert "failed with status 77 (77): unknown to kvdiag" in str(completion_error("RDMA READ", "b:1", 77))


def test_every_status_of_the_verbs_has_causes_and_a_next_step() -> None:
    assert sorted(STATUSES) == list(range(1, 24))
    for number, status in STATUSES.items():
        line = str(
            completion_error("RDMA WRITE", "b:1", number, seen=["port rxe0/1 is ACTIVE", "retry_exceeded_err +1"])
        )
        assert f"failed with {status.name} ({number})" in line and "\n" not in line
        assert "; seen: port rxe0/1 is ACTIVE, retry_exceeded_err +1; next: " in line
        assert status.causes and status.action
