import numpy as np
from numpy.typing import NDArray

from kvdiag.derive.stages import UNACCOUNTED, fine_stages, stage_matrix
from kvdiag.model.bundle import RequestColumns


def _requests(**columns: list[float]) -> RequestColumns:
    numbers: dict[str, NDArray[np.float64]] = {name: np.array(values) for name, values in columns.items()}
    return RequestColumns(ids=["a", "b"], numbers=numbers, labels={})


def test_rows_add_up_to_ttft_with_what_no_stage_covers() -> None:
    matrix = stage_matrix(_requests(ttft_s=[1.0, 2.0], queue_s=[0.25, 0.5], wire_s=[0.5, np.nan]))
    assert matrix.names == ("queue_s", "wire_s", UNACCOUNTED)
    assert matrix.seconds.sum(axis=1).tolist() == [1.0, 2.0]
    assert matrix.seconds[:, 2].tolist() == [0.25, 1.5]
    assert matrix.gaps == {"wire_s": 1}


def test_stages_are_in_the_order_in_which_a_request_passes_them() -> None:
    matrix = stage_matrix(_requests(ttft_s=[1, 1], first_step_s=[0, 0], kv_wait_s=[0, 0], prefill_s=[0, 0]))
    assert matrix.names == ("prefill_s", "kv_wait_s", "first_step_s", UNACCOUNTED)


def test_granularity_follows_the_stages_present() -> None:
    assert stage_matrix(_requests(ttft_s=[1, 1], wire_s=[1, 1])).granularity == "full"
    assert stage_matrix(_requests(ttft_s=[1, 1], transfer_s=[1, 1])).granularity == "typical"
    assert stage_matrix(_requests(ttft_s=[1, 1], kv_wait_s=[1, 1])).granularity == "coarse"


def test_a_coarse_stage_covers_its_parts() -> None:
    assert fine_stages("transfer_s") == ("post_s", "wire_s")
    assert fine_stages("wire_s") == ("wire_s",)
