"""Verbs with a result, each in a phase of its own: 1 round trip. In an operation; not for words of
the control segment, which are not posted.

For the steps of a protocol of which each depends on the one before.
"""

from __future__ import annotations

from typing import Any


def load_alone(endpoint: Any, addr: int) -> int:
    """The word at `addr`."""
    ticket = endpoint.post_load(addr)
    endpoint.wait()
    found: int = endpoint.result(ticket)
    return found


def cas_alone(endpoint: Any, addr: int, expected: int, desired: int) -> int:
    """Set the word at `addr` to `desired` if it is `expected`; what it was."""
    ticket = endpoint.post_cas(addr, expected, desired)
    endpoint.wait()
    found: int = endpoint.result(ticket)
    return found
