"""The configuration of an exporter that joins the records of one prefill and one decode engine."""

_ENGINES = """
[[engines]]
name = "vllm-prefill"
node = "p0"
role = "prefill"
[[engines]]
name = "vllm-decode"
node = "d0"
role = "decode"
"""


def configuration(*, interval_s: float, top: str = "", tables: str = "", records: str = "") -> str:
    """Return TOML; `top` are further lines of its head, `tables` further tables, `records` lines of that table."""
    head = f'listen = "127.0.0.1:0"\ninterval_s = {interval_s}\n{top}'
    return f'{head}{_ENGINES}{tables}[records]\notlp_http = "127.0.0.1:0"\n{records}'
