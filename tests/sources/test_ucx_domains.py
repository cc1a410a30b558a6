from kvdiag.model.ucx import UcxDomain
from kvdiag.sources.ucx_info import parse_domains


def test_memory_types_and_dmabuf_of_each_domain() -> None:
    text = (
        "# Memory domain: tcp\n#     Component: tcp\n#             register: unlimited, cost: 180 nsec\n#\n"
        "# Memory domain: mlx5_0\n#     Component: ib\n"
        "#             register: unlimited, dmabuf, cost: 16000 + 0.060 * N nsec\n"
        "#         memory types: host (access,reg,cache), cuda-managed (access,reg), cuda (access,reg,cache)\n"
    )
    assert parse_domains(text) == (
        UcxDomain(name="tcp", component="tcp", memory_types=(), dmabuf=False),
        UcxDomain(name="mlx5_0", component="ib", memory_types=("host", "cuda-managed", "cuda"), dmabuf=True),
    )
