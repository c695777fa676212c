"""Membership: the servers of a pool, as etcd has them, by the HTTP gateway of its version 3.

Keys, each under a lease of its server, which a thread of that keeps alive
    limpet/NAME/control           the control server: HOST:PORT, a space, the pool's uuid in hex
    limpet/NAME/nodes/HOST:PORT   the same, of a data server

etcd elects, and tells addresses; it fences nobody. Of the servers on hosts that reach the memory of
the control segment (`--membership`), the one whose transaction makes the key `control` becomes the
control server; the others stand by, and look each STAND_BY_S. That a server which has lost its key
does no verb any more is the work of a word in the control segment, `server`:

    SERVER    counts takings of the control segment by servers with `--membership`; 0: none yet

Steps of taking over (`Server._take`, server.py)
    1. read SERVER
    2. make the key, if there is none
    3. SERVER: CAS from what step 1 has read to one more. If it fails, drop the key and begin anew
    4. evict all remote clients (evictions.py): their connections are those of an earlier server
    5. answer

Why an earlier server changes nothing any more, if it stood still from any moment on and goes on
now. It looks at SERVER before each message, and ends if that is not its own number. If it was in
the midst of a message, each step of that has a guard (`Endpoint.guard`): the client's slot, which
step 4 has made DYING; or SERVER, while the client has no slot, and in what the server does itself.
One step of 8 bytes is left to it, as to every client that was given up. Words that it sends to data
servers late are harmless, as those of a ledger only go up (ledger.py); its answer to ENROL was read
while SERVER had its number. A server without `--membership` takes nothing over: the number
that SERVER has when it starts is its own, so it ends at the next takeover.

Two servers that have passed step 2, as the first one stood still for its lease then, have read the
same word, so one CAS fails. Thus invariant 3 of ledger.py holds, and etcd may lose or delay what it
likes: without it the control server goes on, and no other one takes over. It makes its key again
when etcd is back.

Crash states
    the control server, at any moment   its key ends with its lease. SERVER, evictions and node
                                        states are in the control segment, and ledgers where they
                                        are: the successor goes on from these
    between the steps                   as before step 1, but for a key that ends with its lease

Not in etcd: words that operations touch; leases of clients, which are words of their slots;
evictions and node states, which are words of the control segment and of ledgers. They are of use
only as long as that memory lives, and a second copy could contradict them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from limpet.shm.endpoint.layout import LEDGER, NODE_PLACES
from limpet.shm.errors import LimpetError, ParameterError, PoolNotFound
from limpet.shm.net.backend import parse_address

log = logging.getLogger("limpet")

SERVER: Final = LEDGER + 8
assert SERVER < NODE_PLACES
LEASE_S: Final = 5
"""How long a key outlives its server."""
STAND_BY_S: Final = 0.25
ANSWER_S: Final = 2.0
"""How long one member of etcd may take."""
SCHEME: Final = "etcd://"

Address = tuple[str, int]


class NoEtcd(LimpetError):
    """No member of etcd answers, or it refuses what is asked."""


def parse_endpoints(text: str) -> tuple[Address, ...]:
    """The addresses in etcd://HOST:PORT,HOST:PORT. Raises ParameterError."""
    if not text.startswith(SCHEME):
        raise ParameterError(f"{text!r}: write {SCHEME}HOST:PORT, or several with commas")
    return tuple(map(parse_address, text.removeprefix(SCHEME).split(",")))


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode(errors="replace")


class Gateway:
    """The members of one etcd. Any thread may ask them."""

    def __init__(self, members: Sequence[Address]) -> None:
        self.members = members
        self.first = 0
        """The place of the one that has answered last."""

    def ask(self, what: str, read: Callable[[Any], Any] = dict, **body: Any) -> Any:
        """What `read` finds in the answer to one call. NoEtcd: no member has an answer, or one that
        `read` can take; the call may have been done or not."""
        how, why, first = "", "", self.first
        for place in (*range(first, len(self.members)), *range(first)):
            host, port = self.members[place]
            connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
            try:
                connection.request("POST", f"/v3/{what}", json.dumps(body))
                answer = connection.getresponse()
                found = json.loads(answer.read())
                if answer.status == 200 and "error" not in found:
                    done = read(found)
                    self.first = place
                    return done
                how, why = f"refuses {what}", str(found.get("error", answer.status))
            except (OSError, http.client.HTTPException) as error:
                how, why = "does not answer", getattr(error, "strerror", None) or str(error)
            except (
                ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
            ) as error:  # fmt: skip
                how, why = f"answers {what} otherwise than etcd does", repr(error)
            finally:
                connection.close()
        where = ",".join(f"{host}:{port}" for host, port in sorted(self.members))
        raise NoEtcd(
            f"etcd at {where} {how} ({why}): open handles go on, but no pool can be opened and no "
            "server started by it"
        )

    def find(self, prefix: str) -> dict[str, str]:
        """Keys that begin so, and their values."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)

        def read(found: Any) -> dict[str, str]:
            return {_text(one["key"]): _text(one.get("value", "")) for one in found.get("kvs", ())}

        return dict(self.ask("kv/range", read, key=_coded(prefix), range_end=_coded(end)))


@functools.cache
def gateway(members: tuple[Address, ...]) -> Gateway:
    """The one of this process, which begins with the member that has answered last."""
    return Gateway(members)


def _prefix(name: str) -> str:
    return f"limpet/{name}/"


def addresses(members: tuple[Address, ...], name: str) -> list[Address]:
    """Of the servers of the pool of that name, that of the control server first. PoolNotFound: it
    has none now. NoEtcd."""
    found = gateway(members).find(_prefix(name))
    control = found.pop(f"{_prefix(name)}control", None)
    if control is None:
        raise PoolNotFound(f"etcd knows no server that has the control segment of {name} now")
    first, _, uuid = control.partition(" ")
    rest = [address for address, _, other in (one.partition(" ") for one in found.values())
            if other == uuid]  # fmt: skip
    return [parse_address(address) for address in (first, *sorted(rest))]


class Entry:
    """The key of one server. `control`: it is that of the control server, which one has at a time;
    else that of a data server, which replaces what is there."""

    def __init__(
        self, members: tuple[Address, ...], name: str, address: str, uuid: bytes, control: bool
    ) -> None:
        """NoEtcd. ParameterError: another pool of that name has a control server."""
        self.gateway = gateway(members)
        self.key = _prefix(name) + ("control" if control else f"nodes/{address}")
        self.value = f"{address} {uuid.hex()}"
        self.control = control
        self.lease = "0"
        self._ended = threading.Event()
        other = self.other()
        if control and other and other.partition(" ")[2] != uuid.hex():
            raise ParameterError(
                f"etcd has a server of another pool {name}, at {other.partition(' ')[0]}: give "
                f"this one another name; or, if that one was killed, wait {LEASE_S} s"
            )

    def other(self) -> str:
        """The value that is there; empty: none."""
        return self.gateway.find(self.key).get(self.key, "")

    def take(self) -> bool:
        """Make the key; False: another server has it. NoEtcd."""
        if self.control and self.other():
            return False
        lease = self.gateway.ask("lease/grant", lambda found: str(found["ID"]), TTL=LEASE_S)
        key = _coded(self.key)
        free = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
        put = {"request_put": {"key": key, "value": _coded(self.value), "lease": lease}}
        if not self.gateway.ask(
            "kv/txn", lambda found: found.get("succeeded"), compare=[free] * self.control,
            success=[put],
        ):  # fmt: skip
            self.gateway.ask("lease/revoke", ID=lease)
            return False
        self.lease = lease
        return True

    def keep(self) -> None:
        """Keep the key, in a thread, until `drop`."""
        self._ended.clear()
        threading.Thread(target=self._keep, name="limpet-etcd", daemon=True).start()

    def _keep(self) -> None:
        silent = False
        while not self._ended.wait(LEASE_S / 4):
            try:
                left_s = self.gateway.ask(
                    "lease/keepalive", lambda found: int(found["result"].get("TTL", 0)),
                    ID=self.lease,
                )  # fmt: skip
                if not (left_s and self.other() == self.value) and not self._ended.is_set():
                    self.take()  # it was over, or the key was removed
                silent = False
            except LimpetError as error:
                if not silent:
                    log.warning("%s: no other server can take over meanwhile: %s", self.key, error)
                silent = True

    def drop(self) -> None:
        """Give the key up."""
        self._ended.set()
        with contextlib.suppress(NoEtcd):  # it ends with its lease
            self.gateway.ask("lease/revoke", ID=self.lease)
