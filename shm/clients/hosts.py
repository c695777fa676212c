"""Hosts: their names, and how the clients of another host become lost.

A client's slot has these words about its host (slots.py):

    boot, namespace   this run of the host's kernel, and the PID namespace; two clients with the
                      same words are processes of one kernel: life locks decide between them
    machine           the host over its reboots: a hash of the name in LIMPET_HOST (lowest bit 1),
                      or of /etc/machine-id (lowest bit 0), or 0
    name              the first 8 bytes of that name, or of the host's node name, for people
    beat              the host's wall clock in us when the client renewed its lease last; it goes up
                      at each renewal, also when that clock does not
    fence             the client that asks this one's host to end it

A kernel draws its boot id when it starts. Machines that were copied while they ran have the same
boot id, and machines made from one image have the same /etc/machine-id, so neither word tells two
such hosts apart. LIMPET_HOST does: an operator who sets it promises that no two hosts that run have
the same name, and that all processes of one host have it. It is part of `boot` in a pool of several
hosts. A client of the same name and another boot belongs to a run of this very host that is over.

When a client of another host is lost, in a pool with `multi_host`:

    beat stood still for a lease        if it keeps something from others, and the pool's fence is
                                        not "wait", the fence word asks its host to end it; a client
                                        of this name (LIMPET_HOST) and another boot is lost now
    it stands still for another lease   the client is lost, if the pool's fence is "kill" or "wait";
                                        if it is "command", once the command of `limpet watch` has
                                        ended with status 0: the host is switched off

The client that looks measures these times on its own clock; clocks of hosts are not compared. A
host that is lost by its lease alone may only have stood still. When its clients go on, they make no
step in the pool any more (`Endpoint.guard`), except the one in which they were stopped, of 8 bytes
at most. Only a command rules that step out, too.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from limpet.shm.endpoint import slots
from limpet.shm.endpoint.fabric import hash64
from limpet.shm.endpoint.layout import slot_address
from limpet.shm.endpoint.slots import LIVE, STATE_SHIFT
from limpet.shm.errors import ClientError
from limpet.shm.release import text_of, text_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.shm.clients.liveness import Host
    from limpet.shm.endpoint.fabric import Endpoint
    from limpet.shm.parameters import PoolParameters

log = logging.getLogger("limpet")

VARIABLE: Final = "LIMPET_HOST"
NAMED: Final = 1
"""Bit of `machine`: the host has a name of its own."""
MACHINE_ID: Path = Path("/etc/machine-id")
COMMAND_S: Final = 60.0
"""How long a command that switches a host off may take."""


def given_name() -> str:
    """The name that this host was given, or an empty one."""
    return os.environ.get(VARIABLE, "").strip()


@functools.cache
def this_machine(name: str) -> int:
    """The word `machine` of a host that was given that name, or none."""
    if name:
        return hash64(b"name " + name.encode()) | NAMED
    try:
        found = MACHINE_ID.read_bytes().strip()
    except OSError:
        return 0
    return hash64(b"id " + found) & ~NAMED if found else 0


def name_word(name: str) -> int:
    """The word `name` of this host, if it was given that name."""
    return text_word(name or os.uname().nodename)


class Looker(Protocol):
    """The client that looks at other clients (membership.py), as this module sees it."""

    endpoint: Endpoint
    parameters: PoolParameters
    pool: str
    lease_s: float
    host_name: str
    now: Callable[[], float]

    @property
    def ident(self) -> int: ...
    @property
    def here(self) -> Host: ...
    def occupied(self) -> Iterator[tuple[int, int]]: ...
    def keeps_others_out(self, slot: int) -> bool: ...
    def overdue(self, resource: object, hold: object) -> bool: ...
    def suspend(self, slot: int, word: int, what: str) -> None: ...


class LostHost(NamedTuple):
    """A host whose lease is over: the arguments of the command that switches it off."""

    name: str
    machine: str
    boot: str


Fencer = Callable[[LostHost], bool]
"""Switches a host off; whether it is off for certain."""


def fencer_of(command: Sequence[str]) -> Fencer:
    """A fencer that runs a command with name, machine and boot of the host as its arguments.

    Only status 0, within `COMMAND_S`, shows that the host is off.
    """
    import subprocess  # not at the top: it would cost every program 3 ms

    def fence(lost: LostHost) -> bool:
        try:
            done = subprocess.run([*command, *lost], timeout=COMMAND_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.error("host %s was not switched off: %s", lost.name, error)
            return False
        if done.returncode:
            log.error("host %s was not switched off: status %d", lost.name, done.returncode)
        return done.returncode == 0

    return fence


class Remote:
    """One client's knowledge of the clients of other hosts."""

    def __init__(self, membership: Looker) -> None:
        self.membership = membership
        self.fencer: Fencer | None = None
        """The call by which this client can switch a host off, if it has one."""
        self._off: set[int] = set()
        """Words `boot` of hosts that were switched off. None of them comes back with that boot."""

    def lost(self, slot: int, word: int, waiting: bool = False) -> bool:
        """Whether the client of that slot and state word, of another host, is lost. `waiting`: we
        wait for what it keeps. One that is lost is DYING: the guard keeps it from the pool."""
        if not self._is_over(slot, word, waiting):
            return False
        # ORDER: before we act on it: the client may go on, and must find that it was given up.
        return bool(self.membership.endpoint.give_up(slot_address(slot), word))

    def _is_over(self, slot: int, word: int, waiting: bool) -> bool:
        members, at = self.membership, slot_address(slot)
        load = members.endpoint.load
        boot = load(at + slots.BOOT)
        if boot in self._off:
            # ORDER: after the slot's words were read: if the client is still there, they are its
            # own.
            return load(at) == word
        hold = (word, load(at + slots.BEAT))
        if not members.overdue(("beat", slot), hold):
            return False
        if self._earlier_run(slot):
            return True
        if waiting or members.keeps_others_out(slot):
            self.ask(slot)
        if not members.overdue(("lost", slot), hold):
            return False
        if members.parameters.fence != "command":
            return True
        return load(at) == word and self._switched_off(slot, word, boot)

    def ask(self, slot: int) -> None:
        """Ask the host of a client that keeps something from others to end it."""
        members = self.membership
        if members.parameters.fence != "wait" and members.parameters.multi_host:
            members.endpoint.cas(slot_address(slot) + slots.FENCE, 0, members.ident)

    def _earlier_run(self, slot: int) -> bool:
        """Whether the slot's client belongs to a run of this host that is over."""
        at = slot_address(slot)
        load = self.membership.endpoint.load
        machine = load(at + slots.MACHINE)
        return bool(machine & NAMED) and (
            machine == this_machine(self.membership.host_name)
            and load(at + slots.BOOT) != self.membership.here.boot
        )

    def _switched_off(self, slot: int, word: int, boot: int) -> bool:
        at = slot_address(slot)
        load = self.membership.endpoint.load
        if self.fencer is None or boot == self.membership.here.boot:  # a container of this host
            self.membership.suspend(slot, word, "what may be taken once its host is switched off")
            return False
        lost = LostHost(
            text_of(load(at + slots.NAME)), f"{load(at + slots.MACHINE):016x}", f"{boot:016x}"
        )
        log.warning("%s: switching off host %s: its lease is over", self.membership.pool, lost.name)
        if not self.fencer(lost):
            return False
        self._off.add(boot)
        return True

    def refuse_name(self) -> None:
        """Raise ClientError when another running host has this one's name. Takes up to a lease.

        A client of an earlier run of this host renews no lease.
        """
        members = self.membership
        load = members.endpoint.load
        suspects = {
            slot: (word, load(slot_address(slot) + slots.BEAT))
            for slot, word in members.occupied()
            if word >> STATE_SHIFT == LIVE and self._earlier_run(slot)
        }
        attempt, end = 0, members.now() + members.lease_s
        while suspects and members.now() < end:
            for slot, (word, beat) in list(suspects.items()):
                at = slot_address(slot)
                if load(at) != word:
                    del suspects[slot]
                elif load(at + slots.BEAT) != beat:
                    raise ClientError(
                        f"{members.pool}: another host that runs is called "
                        f"{members.host_name!r}, too; give each host a {VARIABLE} of its own"
                    )
                else:
                    members.overdue(("beat", slot), (word, beat))
            attempt += 1
            members.endpoint.pause(attempt)
