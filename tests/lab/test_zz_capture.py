import sys, json, pytest
from pathlib import Path
def test_capture(lab_node):
    m=lab_node.a.machine
    holder=m.spawn(["/usr/bin/python3","tests/sources/netlink_holder.py","rxe0","3"],stdin=True)
    holder.wait_for("^ready",60)
    r=m.run([sys.executable,"-m","tests.sources.netlink_capture"],60,check=True)
    Path("/tmp/capture.json").write_text(r.stdout)
    print(len(r.stdout))
    print(m.run("uname -r; rdma -V").stdout)
    holder.write(b"\n")
    assert holder.wait(20).rc==0
