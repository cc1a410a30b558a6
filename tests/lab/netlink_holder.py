"""Run in a lab machine: hold RDMA objects made by two threads, say so, and wait for a line on standard input."""

import sys
import threading

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPT_RC, IBV_QPT_UD
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

device, pairs = sys.argv[1], int(sys.argv[2])
context = Context(name=device)
pd = PD(context)
cq = CQ(context, 16)
queue_pairs = [QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap())) for _ in range(pairs)]
queue_pairs.append(QP(pd, QPInitAttr(qp_type=IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap())))
queue_pairs[0].to_init(QPAttr(port_num=1))
queue_pairs[0].modify(QPAttr(qp_state=IBV_QPS_ERR, cur_qp_state=IBV_QPS_INIT), IBV_QP_STATE)
regions = [MR(pd, 8192, IBV_ACCESS_LOCAL_WRITE)]


def register() -> None:
    """Register from a thread that stays, and from one that ends."""
    regions.append(MR(pd, 65536, IBV_ACCESS_LOCAL_WRITE))
    ready.set()
    done.wait()


ready, done = threading.Event(), threading.Event()
thread = threading.Thread(target=register)
thread.start()
ready.wait()
ending = threading.Thread(target=lambda: regions.append(MR(pd, 4096, IBV_ACCESS_LOCAL_WRITE)))
ending.start()
ending.join()
print("ready", flush=True)  # noqa: T201
sys.stdin.readline()
done.set()
thread.join()
