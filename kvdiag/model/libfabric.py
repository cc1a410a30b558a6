"""What libfabric offers on a host, as `fi_info` lists it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LibfabricDomain:
    """One entry; `version` is the provider's ("200.0")."""

    provider: str
    fabric: str
    domain: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LibfabricDomains:
    """Every entry once, in the order listed; empty where fi_info found none. `origin` names what said so."""

    domains: tuple[LibfabricDomain, ...]
    origin: str

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers, each once and without its layers ("verbs;ofi_rxm" is "verbs"), in the order listed."""
        return tuple(dict.fromkeys(item.provider.partition(";")[0] for item in self.domains))
