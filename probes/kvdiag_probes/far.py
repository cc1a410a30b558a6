"""The peer's end of a data path, as the control channel lets a probe handle it."""

from dataclasses import dataclass

from kvdiag.errors import UnavailableError
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.messages import FillRequest, PassRequest, ReceiveRequest, VerifyRequest
from kvdiag_probes.datapath import Plan


@dataclass(frozen=True, slots=True)
class Far:
    """One session of an agent."""

    client: AgentClient
    session: str

    def fill(self, seed: int, size: int, offset: int = 0) -> None:
        """Have the pattern of a seed written into the peer's buffer."""
        self.client.fill(self.session, FillRequest(seed=seed, size=size, offset=offset))

    def verify(self, seed: int, size: int) -> tuple[str, str | None]:
        """Return the digest of the peer's buffer, and the mismatch with the pattern in one line or None."""
        answer = self.client.verify(self.session, VerifyRequest(seed=seed, size=size))
        return answer.digest, answer.mismatch

    def check(self, seed: int, plan: Plan, stale: int | None, immediates: int) -> tuple[str, str | None]:
        """Verify a pass; a mismatch is classified, and that many immediates must have come."""
        answer = self.client.verify(
            self.session,
            VerifyRequest(
                seed=seed,
                size=plan.bytes,
                offset=plan.base,
                block=plan.size,
                stale=stale,
                immediates=immediates,
                chain=plan.chain,
            ),
        )
        return answer.digest, answer.mismatch

    def receive(self, plan: Plan) -> None:
        """Have receives posted for a pass of messages with immediate data."""
        self.client.receive(self.session, ReceiveRequest(count=plan.slots, chain=plan.chain))

    def arm(self, plan: Plan, flag: int, flag_offset: int, watched_seed: int | None = None) -> None:
        """Have the peer run a pass of its own when it sees the flag, or with a seed compare its buffer then."""
        self.client.arm(
            self.session,
            PassRequest(
                flag=flag,
                flag_offset=flag_offset,
                operation=plan.operation,
                size=plan.size,
                slots=plan.slots,
                queue_depth=plan.queue_depth,
                chain=plan.chain,
                base=plan.base,
                timeout_s=plan.timeout_s,
                watch=watched_seed is not None,
                seed=watched_seed or 0,
            ),
        )

    def answer(self, plan: Plan, seed: int) -> None:
        """Have the peer answer each message of a pass, of the seed's pattern, with one of a pass of its own."""
        self.client.arm(
            self.session,
            PassRequest(
                flag=0,
                flag_offset=0,
                operation=plan.operation,
                size=plan.size,
                slots=plan.slots,
                queue_depth=plan.queue_depth,
                chain=plan.chain,
                base=plan.base,
                timeout_s=plan.timeout_s,
                answer=True,
                seed=seed,
            ),
        )

    def collect(self) -> tuple[float, str | None]:
        """Return the seconds of the peer's pass, and what was wrong with it or None."""
        answer = self.client.collect(self.session)
        return answer.elapsed_s, answer.error

    def finish(self) -> float:
        """Return the seconds of the peer's pass; UnavailableError where it failed."""
        elapsed_s, error = self.collect()
        if error is not None:
            raise UnavailableError(f"{self.client.peer}: the peer's own transfer failed: {error}")
        return elapsed_s
