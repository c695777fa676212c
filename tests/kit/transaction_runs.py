"""Simulated runs in which clients do transactions, each judged as a whole.

The accounts are keys of an `rtx-sherman` store, of an `rtx-race` store, or some of each. The value
of one is its balance, and the name of every transfer that has changed it, in order. So what a run
left behind, and what was read in it, say in which order the transactions took effect, and whether
there is one: see `Judge`.

As text, a program is like the explorer's (fault/explore/sim_program.py); an operation is a letter
and accounts:
    mXY  a transaction moves 1 from account X to account Y
    cXY  a transaction reads account X, and changes account Y
    s    a transaction reads all accounts;  n: it scans them, if the store is ordered
    fXY  a transaction inserts the flag X, if neither that nor the flag Y is there
    t    a transaction puts a key that others put and delete, too, and moves 1 from a to b
    p    a plain put of that key;  d: a plain delete
    gX   a plain get of an account
    o    a plain put of a key of the client's own, which is between the accounts
    i    a plain insert of one more such key
    r    recovers the dead
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from limpet.fault.explore.schedule import (
    CRASH,
    STALL,
    Action,
    Chooser,
    Faults,
    Longest,
    Point,
    Priorities,
    RandomWalk,
    Replay,
    Schedule,
    draw_faults,
    schedule_text,
)
from limpet.fault.explore.sim_cluster import SimulatedClient, SimulatedCluster
from limpet.fault.explore.sim_program import Call, Program
from limpet.fault.explore.sim_run import Run
from limpet.shm.errors import LimpetError, NodeFailed, TransactionConflict
from limpet.stores.transactions.layout import TX_TIME

READERS: Final = "n s n|mab mba cab|s mbc n"
"""Two clients that read all, beside transfers."""
ACCOUNTS: Final = (b"a", b"b", b"c")
BALANCE: Final = 100
SMALL: Final[Mapping[str, Any]] = {
    "capacity": 64, "key_size": 20, "value_size": 40, "node_size": 384,
    "drift_us": 60, "each_us": 60,
}  # fmt: skip
"""Nodes of few entries: the accounts are in several leaves, and inserts split them."""
LARGE: Final[Mapping[str, Any]] = {**SMALL, "node_size": 3776}
"""Nodes that fill a block by four: memory is soon used again."""
SLOTS: Final[Mapping[str, Any]] = {
    "capacity": 1, "groups": 2, "bucket_size": 1, "drift_us": 60, "each_us": 60,
}  # fmt: skip
"""Subtables of six slots, of which a key may be in four: inserts split them."""
FILLER_SIZE: Final = 16
BESIDE_SIZE: Final = 40
"""Of values so large that accounts are in leaves of their own, where nodes are small."""
KINDS: Final = {
    "m": "move", "c": "copy", "s": "sum", "n": "scan", "g": "get", "o": "own",
    "i": "insert", "r": "recover", "f": "flag", "t": "together", "p": "put", "d": "delete",
}  # fmt: skip
BOTH: Final = "both"
"""In place of a kind: account b, and the flag a, are in a hash store, and all else in a tree."""
IN_SECOND: Final = (b"account b", b"flag a")
SHARED: Final = b"shared"


def parse(text: str) -> Program:
    """The program of a text."""
    return tuple(
        tuple(Call(KINDS[word[0]], word[1:].encode()) for word in part.split())
        for part in text.split("|")
    )


def draw(rng: random.Random, clients: int, ops: int) -> Program:
    """A random program; most of it is transfers."""

    def call() -> Call:
        kind = KINDS[rng.choice("mmmmmccssngoioifftpd")]
        if kind == "flag":
            return Call(kind, rng.choice((b"ab", b"ba")))
        if kind in ("move", "copy"):
            return Call(kind, b"".join(rng.sample(ACCOUNTS, 2)))
        return Call(kind, rng.choice(ACCOUNTS) if kind == "get" else b"")

    program = [[call() for _ in range(ops)] for _ in range(clients)]
    if rng.random() < 0.2:
        rng.choice(program)[rng.randrange(ops)] = Call("recover")
    return tuple(tuple(calls) for calls in program)


def text_of(program: Program) -> str:
    """A program as text."""
    letters = {name: letter for letter, name in KINDS.items()}
    return "|".join(
        " ".join(letters[call.kind] + call.key.decode() for call in calls) for calls in program
    )


def key_of(account: bytes) -> bytes:
    return b"account " + account


def encoded(balance: int, names: tuple[bytes, ...]) -> bytes:
    return b"%d " % balance + b",".join(names)


def decoded(value: bytes) -> tuple[int, tuple[bytes, ...]]:
    balance, _, names = value.partition(b" ")
    return int(balance), tuple(filter(None, names.split(b",")))


# ---- judging -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Happened:
    """A transaction, or a get, that took effect: what it read, and between when and when."""

    what: str
    began: int
    ended: float = math.inf
    read: dict[bytes, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)


class Judge:
    """The operations of a run, and whether they are strictly serialisable."""

    def __init__(self) -> None:
        self.moves: dict[bytes, tuple[Happened, bytes]] = {}
        """By name: when it was, and the accounts that it changes."""
        self.refused: set[bytes] = set()
        self.reads: list[Happened] = []
        self.time = 0

    def now(self) -> int:
        self.time += 1
        return self.time

    def verdict(self, final: dict[bytes, tuple[int, tuple[bytes, ...]]]) -> str:
        """The fault, or "" if there is none; `final`: balance and names of each account."""
        total = sum(balance for balance, _ in final.values())
        if total != BALANCE * len(final):
            return f"sum: the accounts have {total}: {final}"
        names = {account: found for account, (_, found) in final.items()}
        return next(
            filter(None, (*self._wrong_moves(names), *self._wrong_reads(names))), ""
        ) or self._wrong_order(names)

    def _wrong_moves(self, final: dict[bytes, tuple[bytes, ...]]) -> Iterator[str]:
        for name, (happened, accounts) in self.moves.items():
            times = [final[bytes((account,))].count(name) for account in accounts]
            if len(set(times)) > 1:
                yield f"torn: the transfer {name!r} is in one account only: {final}"
            elif times[0] > 1:
                yield f"twice: the transfer {name!r} took effect {times[0]} times: {final}"
            elif not times[0] and happened.ended < math.inf:
                yield f"lost: the transfer {name!r} has no effect: {final}"
            elif times[0] and name in self.refused:
                yield f"refused: the transfer {name!r} took effect all the same: {final}"

    def _wrong_reads(self, final: dict[bytes, tuple[bytes, ...]]) -> Iterator[str]:
        for read in self.reads:
            for account, names in read.read.items():
                if final[account][: len(names)] != names:
                    yield f"dirty: {read.what} read {names} of {account!r}: {final}"

    def _wrong_order(self, final: dict[bytes, tuple[bytes, ...]]) -> str:
        """Whether there is an order of all, with each after those that had ended before it."""
        done = {name for names in final.values() for name in names}
        nodes: dict[bytes | int, Happened] = {n: self.moves[n][0] for n in done}
        nodes.update(enumerate(self.reads))
        after: dict[bytes | int, set[bytes | int]] = {node: set() for node in nodes}
        for names in final.values():
            for first, second in itertools.pairwise(names):
                after[first].add(second)
        for node, happened in nodes.items():
            for account, names in happened.read.items():
                if names:
                    after[names[-1]].add(node)
                if len(final[account]) > len(names):
                    after[node].add(final[account][len(names)])
        for one, first in nodes.items():
            after[one].update(
                other for other, second in nodes.items() if first.ended < second.began
            )
            after[one].discard(one)  # what it read, it changed
        left = dict(after)
        while left:
            behind = set().union(*left.values())
            free = [node for node in left if node not in behind]
            if not free:
                return f"order: there is none of {[nodes[n] for n in left]}: {final}"
            for node in free:
                del left[node]
        return ""


# ---- running -------------------------------------------------------------------------------------


class TxStage(SimulatedCluster):
    """A stage with accounts; clocks go by the scheduler's."""

    seconds: dict[int, Any]
    """The second stores of the clients, by their number, and of the setup client, -1."""

    def _prepare(self) -> None:
        super()._prepare()
        self.seconds = {}
        if self.both:
            self.seconds[-1] = self.setup_client.store("rtx-race", name="second", **SLOTS)
            for player in self.clients:
                self.seconds[player.number] = player.pool.store("rtx-race", name="second")
        for account in ACCOUNTS:
            self.store_of(None, key_of(account)).put(key_of(account), encoded(BALANCE, ()))
            for number in range(3):
                self.store.put(b"%s beside%d" % (key_of(account), number), bytes(BESIDE_SIZE))
        for player in self.clients:
            self.store.put(own_key(player.number), b"")
            player.endpoint.now_us = lambda: int((self.clock - self._began) * 1e6)
        self.leaves = 0
        """In how many leaves the accounts are, if there is but a tree."""
        if self.store.ordered and not self.both:
            self.leaves = len({self._leaf(key_of(account)) for account in ACCOUNTS})
        self.image = self.setup_client.image()

    both = False

    def _node_size(self, least: int, clients: int) -> int:
        """Pairs, logs and subtables are of many sizes, and each client has blocks of each."""
        return super()._node_size(least, clients) * (1 if self.kind == "rtx-sherman" else 4)

    def store_of(self, player: SimulatedClient | None, key: bytes) -> Any:
        """The store that has a key, of a client, or of the setup client."""
        if self.both and key in IN_SECOND:
            return self.seconds[-1 if player is None else player.number]
        return self.store if player is None else player.store

    def reset(self) -> None:
        super().reset()
        for store in self.seconds.values():
            store.forget()

    def _leaf(self, key: bytes) -> int:
        self.store.get(key)
        return int(self.store.leaf.at)


def own_key(client: int) -> bytes:
    """Of the client's own; it is in the leaf of an account."""
    return b"account %s%d" % (ACCOUNTS[client % len(ACCOUNTS)], client)


class BothStage(TxStage):
    """A stage with stores of both kinds."""

    both = True


def stage(clients: int, kind: str = "rtx-sherman", nodes: int = 0, **parameters: Any) -> TxStage:
    """A stage with so many clients; `nodes`: of memory, or as many as suit the kind."""
    made = BothStage if kind == BOTH else TxStage
    kind = "rtx-sherman" if kind == BOTH else kind
    usual = SMALL if kind == "rtx-sherman" else SLOTS
    chosen = {**usual, **parameters}
    return made(kind, clients, nodes=nodes, parameters=chosen, value_size=FILLER_SIZE)


class TxRun(Run):
    """A run of such a program."""

    cluster: TxStage

    def __init__(self, stage: SimulatedCluster, program: Program, chooser: Chooser) -> None:
        super().__init__(stage, program, chooser)
        self.judge = Judge()
        self.own: dict[int, list[bytes]] = {}
        """The values that a client has put: these may be there at the end."""
        self.inserted: set[bytes] = set()

    def _get(self, tx: Any, player: SimulatedClient, key: bytes) -> Any:
        return tx.get(self.cluster.store_of(player, key), key)

    def _call(self, player: SimulatedClient, call: Call) -> None:
        name = b"%d.%d" % (player.number, player.op)
        if call.kind == "recover":
            player.pool.recover()
        elif call.kind in ("move", "copy"):
            self._transfer(player, name, call)
        elif call.kind == "get":
            began = self.judge.now()
            key = key_of(call.key)
            read = {call.key: self._balance(self.cluster.store_of(player, key).get(key))[1]}
            self._was_read(f"get {name!r}", began, read)
        elif call.kind == "own":
            self.own.setdefault(player.number, [b""]).append(name)
            player.store.put(own_key(player.number), name)
            self.own[player.number] = [name]
        elif call.kind == "insert":
            player.store.insert(b"account b%s" % name, name.ljust(FILLER_SIZE))
            self.inserted.add(name)
        elif call.kind == "flag":
            self._flag(player, call.key[:1], call.key[1:])
        elif call.kind == "together":
            self._transfer(player, name, Call("move", b"ab"), SHARED)
        elif call.kind == "put":
            player.store.put(SHARED, name)
        elif call.kind == "delete":
            with contextlib.suppress(KeyError):
                player.store.delete(SHARED)
        else:
            self._look(player, name, call.kind == "scan")

    def _was_read(self, what: str, began: int, read: dict[bytes, tuple[bytes, ...]]) -> None:
        self.judge.reads.append(Happened(what, began, self.judge.now(), read))

    def _flag(self, player: SimulatedClient, mine: bytes, other: bytes) -> None:
        keys = b"flag " + mine, b"flag " + other

        def work(tx: Any) -> None:
            if all(self._get(tx, player, key) is None for key in keys):
                tx.insert(self.cluster.store_of(player, keys[0]), keys[0], b"")

        with contextlib.suppress(TransactionConflict):
            player.pool.transaction(work)

    def _transfer(
        self, player: SimulatedClient, name: bytes, call: Call, beside: bytes = b""
    ) -> None:
        giver, taker = call.key[:1], call.key[1:]
        moves = call.kind == "move"
        happened = Happened(f"transfer {name!r}", self.judge.now())
        self.judge.moves[name] = happened, giver + taker if moves else taker

        since = [happened.began]

        def work(tx: Any) -> None:
            began = self._began(tx, since)
            happened.read = {}
            for account, change in ((giver, -moves), (taker, int(moves))):
                key = key_of(account)
                balance, names = self._balance(self._get(tx, player, key))
                happened.read[account] = names
                if name in names:
                    raise AssertionError(f"{name!r} is made again, and is there")
                if change or account == taker:
                    value = encoded(balance + change, (*names, name))
                    tx.put(self.cluster.store_of(player, key), key, value)
            if beside:
                tx.put(player.store, beside, name)
            self._was_read(f"an attempt at {name!r}", began, happened.read)

        try:
            player.pool.transaction(work)
        except TransactionConflict:
            self.judge.refused.add(name)
        else:
            happened.ended = self.judge.now()

    def _began(self, tx: Any, since: list[int]) -> int:
        """When an attempt began: what it recalls was read after the one before it, and before its
        function was called."""
        now = self.judge.now()
        before, since[0] = since[0], now
        return before if tx.recalls() else now

    @staticmethod
    def _balance(value: bytes | None) -> tuple[int, tuple[bytes, ...]]:
        if value is None:
            raise AssertionError("an account is missing")
        return decoded(value)

    def _look(self, player: SimulatedClient, name: bytes, scan: bool) -> None:
        began = self.judge.now()
        since = [began]

        def work(tx: Any) -> dict[bytes, tuple[bytes, ...]]:
            start = self._began(tx, since)
            if scan and player.store.ordered and not self.cluster.both:
                pairs = dict(tx.scan(player.store, key_of(b"a"), key_of(b"d")))
                found = {x: self._balance(pairs.get(key_of(x)))[1] for x in ACCOUNTS}
            else:
                found = {x: self._balance(self._get(tx, player, key_of(x)))[1] for x in ACCOUNTS}
            self._was_read(f"an attempt to read, {name!r}", start, found)
            return found

        self._was_read(f"reading {name!r}", began, player.pool.transaction(work))

    def _inspect(self) -> str:
        setup_client, store = self.cluster.setup_client, self.cluster.store
        stores = {account: self.cluster.store_of(None, key_of(account)) for account in ACCOUNTS}
        try:
            for look in ("before recovery", "after recovery"):
                final = {x: self._balance(stores[x].get(key_of(x))) for x in ACCOUNTS}
                wrong = self.judge.verdict(final) or self._wrong_keys(store)
                if wrong:
                    return f"{wrong} ({look})"
                began = self.judge.now()
                self._was_read(look, began, {x: names for x, (_, names) in final.items()})
                if look == "before recovery":
                    setup_client.recover()
            for each in (store, *stores.values()):
                each.check()
            for account in ACCOUNTS:
                stores[account].put(key_of(account), b"")  # nothing is locked
            store.put(SHARED, b"")
            for each in (store, *stores.values()):
                each.check()
                if len(each) != len(list(each)):
                    return f"check: {each} has {len(each)} keys and gives {len(list(each))}"
            audit = setup_client.audit()
        except (LimpetError, AssertionError) as error:
            return f"check: {type(error).__name__}: {error}"
        if audit["leaked"]:
            return f"leaked: {audit['leaked']} bytes: {audit}"
        if audit["held"]:
            return f"held: {audit['held']} bytes by no client that lives: {audit}"
        return ""

    def _wrong_keys(self, store: Any) -> str:
        for client, possible in self.own.items():
            value = store.get(own_key(client))
            if value not in possible:
                return f"own: the key of client {client} has {value!r}, not one of {possible}"
        flags = [b"flag a", b"flag b"]
        if all(self.cluster.store_of(None, flag).get(flag) is not None for flag in flags):
            return "order: each of two transactions has not seen the other one's insert"
        for name in self.inserted:
            if store.get(b"account b%s" % name) is None:
                return f"own: the key inserted as {name!r} is missing"
        return ""


class LossyRun(TxRun):
    """A run in which a memory node may be lost: what is on others can be read, and written, at once
    or when a lease is over; and nothing is leaked there if no client dies."""

    def _call(self, player: SimulatedClient, call: Call) -> None:
        try:
            super()._call(player, call)
        except NodeFailed as error:
            if error.node not in self.failed:
                raise

    def _inspect(self) -> str:
        if not self.failed:
            return super()._inspect()
        setup_client = self.cluster.setup_client
        for node in self._gone:
            setup_client.mark_failed(node)
        died = any(action.kind == CRASH for taken in self.schedule.values() for action in taken)
        try:
            setup_client.recover()
            for key in (*map(key_of, ACCOUNTS), b"flag a", b"flag b", SHARED):
                store = self.cluster.store_of(None, key)
                with contextlib.suppress(NodeFailed):
                    store.get(key)
                    store.put(key, b"")
                with contextlib.suppress(NodeFailed):
                    store.check()
            audit = setup_client.audit()
        except LimpetError as error:
            return f"check: {type(error).__name__}: {error}"
        if audit["leaked"] and not died:
            return f"leaked: {audit['leaked']} bytes: {audit}"
        return f"held: {audit}" if audit["held"] else ""


def steps_of(made: TxStage, program: str) -> int:
    """How many steps the longest operation of a program takes, when no client disturbs it."""
    watch = Longest({})
    run = TxRun(made, parse(program), watch).go()
    assert run.failure == "", run.failure
    return watch.steps


def faulty(
    made: TxStage, program: str, *faults: tuple[int, int, int, str], runs: list[TxRun] | None = None
) -> str:
    """Run a program with faults: client, operation, step, and STALL or CRASH. What went wrong."""
    schedule = {Point(c, op, step): (Action(kind, c),) for c, op, step, kind in faults}
    run = TxRun(made, parse(program), Replay(schedule)).go()
    if runs is not None:
        runs.append(run)
    return f"{run.failure} [{program} {schedule_text(schedule)}]" if run.failure else ""


def logged(made: TxStage, run: TxRun, client: int) -> bool:
    """Whether a client has published a log."""
    word = made.clients[client].pool.client.slot + TX_TIME
    return any(step[:3] == (client, "store", word) for step in run.trace)


@dataclasses.dataclass
class Explored:
    """The results of many runs."""

    runs: int = 0
    crashes: int = 0
    stalls: int = 0
    losses: int = 0
    failure: str = ""


def explore(
    count: int,
    clients: int = 3,
    ops: int = 2,
    seed: int = 7,
    crashes: int = 1,
    stalls: int = 1,
    program: str = "",
    each: Callable[[TxRun], None] = lambda run: None,
    kind: str = "rtx-sherman",
    lost: int = 0,
    **parameters: Any,
) -> Explored:
    """Random runs until one fails; run NUMBER of a seed is always the same. `lost`: nodes, at
    most, of one more."""
    found = Explored()
    with stage(clients, kind, lost and lost + 1, **parameters) as made:
        length = steps_of(made, "mab mbc s i")
        for number in range(count):
            rng = random.Random(f"{seed}:{number}")
            drawn = draw(rng, clients, ops)
            drawn = parse(program) if program else drawn
            possible = Faults(crashes, stalls, lost, lost + 1)
            faults: Schedule = draw_faults(rng, drawn, possible, length)
            chooser: Chooser = RandomWalk(rng, faults)
            if number & 1:
                total = length * sum(len(calls) for calls in drawn)
                chooser = Priorities(rng, faults, clients, rng.randint(1, 5), total)
            run = (LossyRun if lost else TxRun)(made, drawn, chooser).go()
            each(run)
            found.runs += 1
            found.losses += bool(run.failed)
            kinds = [action.kind for taken in run.schedule.values() for action in taken]
            found.crashes += kinds.count(CRASH)
            found.stalls += kinds.count(STALL)
            if run.failure:
                found.failure = (
                    f"{run.failure} [seed {seed}, run {number}: {text_of(drawn)!r}, "
                    f"{schedule_text(run.schedule)}]"
                )
                break
    return found
