"""The machine: its processor, and whether it is virtual."""

from dataclasses import dataclass

from kvdiag.model.missing import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """`cpu_model` as /proc/cpuinfo names it; `is_guest` whether a hypervisor runs below (x86 tells, Arm does not);
    `vendor` and `product` from the firmware's tables ("Amazon EC2", "p5.48xlarge").
    """

    cpu_model: str | Missing
    cpu_vendor: str | Missing
    is_guest: bool | Missing
    vendor: str | Missing
    product: str | Missing
