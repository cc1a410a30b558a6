"""What a PCI Express link carries."""


def rate_gbps(speed_gtps: float, lanes: int) -> float:
    """Return the rate (10^9 bit/s) of a link after its line code: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, FLITs
    of 242 in 256 bytes at 64 GT/s (PCI Express Base Specification 6.0). Packet headers take some 10% of it.
    """
    if speed_gtps <= 5.0:
        code = 8 / 10
    elif speed_gtps <= 32.0:
        code = 128 / 130
    else:
        code = 242 / 256
    return speed_gtps * lanes * code
