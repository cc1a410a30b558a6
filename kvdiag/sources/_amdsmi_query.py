"""What AMD's management library says about the GPUs, printed as JSON by a program of its own: it may hang."""

import importlib
import sys
from typing import Any

import msgspec


class Named(msgspec.Struct, frozen=True):
    """What amdsmi adds to sysfs: the product's name and the driver's version ("" where it gives none)."""

    address: str
    name: str
    driver: str
    links: int


def query(amdsmi: Any) -> list[Named]:
    """Return every GPU that an initialised amdsmi lists."""
    return [_named(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]


def _named(amdsmi: Any, handle: Any) -> Named:
    about = _ask(amdsmi, amdsmi.amdsmi_get_gpu_asic_info, handle)
    driver = _ask(amdsmi, amdsmi.amdsmi_get_gpu_driver_info, handle)
    links = _ask(amdsmi, getattr(amdsmi, "amdsmi_get_gpu_xgmi_link_status", None), handle)
    status = links.get("status")
    return Named(
        address=str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(),
        name=_text(about.get("market_name")),
        driver=_text(driver.get("driver_version")),
        links=list(status).count("U") if isinstance(status, list) else -1,
    )


def _ask(amdsmi: Any, call: Any, handle: Any) -> dict[str, Any]:
    if call is None:
        return {}
    try:
        answer = call(handle)
    except amdsmi.AmdSmiException:
        return {}
    return answer if isinstance(answer, dict) else {}


def _text(value: object) -> str:
    return "" if value in (None, "N/A") else str(value)


def main() -> None:
    """Print the GPUs; a failing exit status with the reason where amdsmi is not there or does not answer."""
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, SystemExit):  # its wrapper looks for libamd_smi.so while it is imported
        sys.exit("amdsmi is not installed")
    try:
        amdsmi.amdsmi_init()
        found = query(amdsmi)
    except amdsmi.AmdSmiException as error:
        sys.exit(f"amdsmi: {error}")
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
