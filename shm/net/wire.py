"""The messages between a remote client and the server of memory nodes.

A message is one message of libfabric, at most MESSAGE_MAX bytes. All numbers are little-endian.

Header, 16 bytes
    0    u8    kind
    1    u8    VERSION
    2    u16   0
    4    u32   bytes of the message, with the header
    8    u64   number: a client counts its phases from 1 on; an answer has that of its phase

Kinds, in the order in which a connection sees them
    CHALLENGE  server   a nonce of 32 bytes
    PROOF      client   its nonce, 32 bytes; `proof` by the secret, 32 bytes; the pool's name
    WELCOME    server   `proof` of the server, 32 bytes; the nodes that it serves, 256 bits; the
                        superblock of the control segment, 4096 bytes
    REFUSAL    server   why, as text; the connection is closed then. Also in place of an answer
    PHASE      client   verbs, which the server does in their order
    ANSWER     server   what a phase has found
    BEAT       client   the client lives: its lease is renewed (clients/fencing.py). No answer. It
                        has nothing, or the 96 words of the client's counts (slots.py), which
                        the server puts into its slot
    ENROL      server   of memory away from the control segment: its ledger, nodes and address
                        (ledger.py)
    WORDS      server   the answer to ENROL; or unasked, to the server that has sent one
    TAKEN      server   the answer to these
    JUDGE      client   HOST:PORT of another server of the pool, which this client has lost. Sent
                        when no phase is under way, to the server of the control segment
    VERDICT    server   one byte: whether that server answers this one, and has the same pool
    A server that sends ENROL or WORDS connects as a client does, but with a proof of its own.

Verb, 16 bytes and its arguments
    0    u8    operation
    1    u8    flags. QUIET: if its node is lost, no client has to hear of it
    2    u16   0
    4    u32   size: bytes of READ, WRITE, WRITE_IF and BACK; else 0
    8    u64   address
    16   u64   arguments, as many as OPERATIONS says; then the data of WRITE and WRITE_IF, and zeros
               up to a multiple of 8

    CAS_IF and WRITE_IF are done only if the result of an earlier verb of the same message, argument
    0 by its place in it, is argument 1. Otherwise the result of CAS_IF is ~expected.
    GUARD: the word at the address is the state word of this client's slot. From then on, no verb of
    the connection changes anything unless that word is the argument (`Endpoint.guard`).
    ATTACH: use the memory of the address's node as long as the argument is its state word.
    BACK: have pages for these bytes; the result is 1, or 0 if there is no room.
    EVICT: the address is a client's slot, and the argument its state word. The client is to be
    DYING (ledger.py); the result is 1 once it is, or has another word, and 0 until then.
    MAKE: new memory, of the generation that is the argument, for the address's node.

Answer, after the header
    16   u8    status
    17   u8    1 if the server has met lost memory
    18   u16   node that has failed
    20   u32   bytes of text
    24   u64   results, in the order of the verbs: of READ its bytes, and zeros up to a multiple of
               8; of verbs that return a word, that; of the others nothing
    then, unless the status is DONE, 256 bits: the nodes of which verbs were not done; and the text

    A lost node ends the verbs on it; those on other nodes are done. Any other error ends the phase.

What is wrong about a message raises WireError, and its sender is cut off. Nothing that it contains
is done: a phase is read to its end before its first verb is done.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from limpet.shm.errors import LimpetError, ParameterError

VERSION: Final = 1
MESSAGE_MAX: Final = 128 << 10
WINDOW: Final = 4
"""Phases of a client that are not answered, at most."""

CLIENTS: Final = 64
"""Connections of a server at a time, unless it is told otherwise."""
CLIENTS_MAX: Final = 1024
STRANGERS_MAX: Final = 16
"""Connections that have not shown the secret yet, at a time."""

MESSAGE: Final = 1
CONNECTED: Final = 2
CLOSED: Final = 3
REQUEST: Final = 4
"""What a connection tells (libfabric.pyx)."""

CHALLENGE: Final = 1
PROOF: Final = 2
WELCOME: Final = 3
REFUSAL: Final = 4
PHASE: Final = 5
ANSWER: Final = 6
BEAT: Final = 7
JUDGE: Final = 8
VERDICT: Final = 9
ENROL: Final = 10
WORDS: Final = 11
TAKEN: Final = 12

READ: Final = 1
WRITE: Final = 2
WRITE_IF: Final = 3
LOAD: Final = 4
STORE: Final = 5
SWAP: Final = 6
CAS: Final = 7
CAS_IF: Final = 8
FAA: Final = 9
FETCH_OR: Final = 10
MCAS: Final = 11
GUARD: Final = 12
ATTACH: Final = 13
BACK: Final = 14
EVICT: Final = 15
MAKE: Final = 16

OPERATIONS: Final = {
    READ: 0, WRITE: 0, WRITE_IF: 2, LOAD: 0, STORE: 1, SWAP: 1, CAS: 2, CAS_IF: 4, FAA: 1,
    FETCH_OR: 1, MCAS: 4, GUARD: 1, ATTACH: 1, BACK: 0,
    EVICT: 1, MAKE: 1,
}  # fmt: skip
"""Of each operation, the number of its arguments."""
QUIET: Final = 1

DONE: Final = 0
NODE_LOST: Final = 1
FULL: Final = 2
EVICTED: Final = 3
BAD_ADDRESS: Final = 4
REFUSED: Final = 5

HEADER_SIZE: Final = 16
STATUS_SIZE: Final = 8
NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32
NODES_SIZE: Final = 32
"""The nodes that a server has, as bits; that of the control segment, if it has that mapped."""
NAME_MAX: Final = 255
SECRET_MIN: Final = 16
ROOM: Final = MESSAGE_MAX - HEADER_SIZE
"""Bytes of verbs in a message."""
RESULTS_MAX: Final = ROOM - STATUS_SIZE - NODES_SIZE - 1024
"""Bytes of results in an answer, so that an error's text goes with them."""


class WireError(LimpetError):
    """A message is none of this version, or contradicts itself."""


def node_bits(nodes: Sequence[int] | set[int] | frozenset[int]) -> bytes:
    return sum(1 << node for node in set(nodes)).to_bytes(NODES_SIZE, "little")


def nodes_of(bits: bytes) -> frozenset[int]:
    word = int.from_bytes(bits, "little")
    return frozenset(node for node in range(8 * NODES_SIZE) if word >> node & 1)


def proof(secret: bytes, side: bytes, challenge: bytes, nonce: bytes, name: bytes) -> bytes:
    """The proof that a side has the secret: b"client", b"server"; or a server that connects to
    another one: b"judge", to find out whether it lives, b"node" to enrol, b"control" to tell it
    WORDS. None passes for another one, nor for another connection: each side
    has drawn one of the nonces."""
    return hmac.new(secret, b"limpet " + side + challenge + nonce + name, hashlib.sha256).digest()


def is_proof(found: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(found, expected)


def split_proof(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Nonce, proof and name of a PROOF."""
    if not NONCE_SIZE + PROOF_SIZE < len(body) <= NONCE_SIZE + PROOF_SIZE + NAME_MAX:
        raise WireError("no proof")
    end = NONCE_SIZE + PROOF_SIZE
    return body[:NONCE_SIZE], body[NONCE_SIZE:end], body[end:]


IN_FILE: Final = "a client has the one in the file that LIMPET_SECRET_FILE names"


def read_secret(path: str) -> bytes:
    """The secret in a file that only its owner may read. Raises ParameterError."""
    try:
        mode, found = Path(path).stat().st_mode, Path(path).read_bytes().strip()
    except OSError as error:
        raise ParameterError(f"the secret cannot be read: {error}") from error
    if mode & 0o077:
        raise ParameterError(f"{path} may be read by others than its owner: chmod 600 {path}")
    if len(found) < SECRET_MIN:
        raise ParameterError(f"{path}: a secret has at least {SECRET_MIN} bytes, not {len(found)}")
    return found
