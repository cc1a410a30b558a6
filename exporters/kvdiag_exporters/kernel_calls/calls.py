"""Which functions of the kernel are timed, and what of their arguments is read.

All are of drivers/infiniband/core (uverbs_cmd.c, uverbs_std_types_*.c, verbs.c, umem.c), but for mlx5_ib's devx.c. A
call has several functions where programs reach it by write() or by ioctl(): those of them that a kernel has are timed.
"""

from dataclasses import dataclass

_IOCTL = "ib_uverbs_handler_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: `size` and `state` are kprobe arguments (Documentation/trace/kprobetrace.rst) for the bytes that it is
    about and for the queue pair state that it asks for; `pointer` where it returns one, or an error in its place. One
    that only a driver has is `driver_only`: its absence is no news.
    """

    name: str
    functions: tuple[str, ...]
    size: str = ""
    state: str = ""
    pointer: bool = False
    driver_only: bool = False


CALLS = (
    Call(name="reg_mr", functions=("ib_uverbs_reg_mr", f"{_IOCTL}UVERBS_METHOD_REG_MR")),
    Call(name="reg_dmabuf_mr", functions=(f"{_IOCTL}UVERBS_METHOD_REG_DMABUF_MR",)),
    Call(name="dereg_mr", functions=("ib_dereg_mr_user",)),
    Call(name="pin", functions=("ib_umem_get",), size="$arg3:u64", pointer=True),
    Call(
        name="create_qp",
        functions=("ib_uverbs_create_qp", "ib_uverbs_ex_create_qp", f"{_IOCTL}UVERBS_METHOD_QP_CREATE"),
    ),
    # qp_state is the first member of struct ib_qp_attr.
    Call(name="modify_qp", functions=("ib_modify_qp_with_udata",), state="+0($arg2):u32"),
    # UCX makes its queue pairs on mlx5 this way, past create_qp and modify_qp.
    Call(name="create_devx", functions=(f"{_IOCTL}MLX5_IB_METHOD_DEVX_OBJ_CREATE",), driver_only=True),
    Call(name="modify_devx", functions=(f"{_IOCTL}MLX5_IB_METHOD_DEVX_OBJ_MODIFY",), driver_only=True),
)

STATES = {1: "init", 2: "rtr", 3: "rts", 6: "err"}
"""enum ib_qp_state (include/rdma/ib_verbs.h). A call that changes something else than the state reads as RESET, 0."""


def shown(call: str, state: int | None) -> str:
    """Return the name a call is shown by: that of the state it asks for is part of it."""
    if state is None:
        return call
    return f"{call}_{STATES.get(state, 'other')}"
