"""The backends by the scheme of their URLs; and the location that a pool's URL names.

    shm://NAME                      posix.py
    file:///DIR                     file.py
    dax:///dev/dax0.0,/dev/dax1.0   dax.py
    net://HOST:PORT/NAME            net/backend.py, imported when it is first named
    net+etcd://HOST:PORT/NAME       the same

A backend of one's own is registered with `register`, in every process that opens such a pool.
"""

from __future__ import annotations

from typing import Final

from limpet.shm.backends.backend import Location
from limpet.shm.backends.dax import Devices
from limpet.shm.backends.file import Files
from limpet.shm.backends.posix import NAME, SHM_DIR, PosixShm
from limpet.shm.errors import ParameterError
from limpet.shm.late import late

__all__ = ["SHM_DIR", "Location", "backends", "full_url", "parse_url", "register"]

_BACKENDS: Final[dict[str, type[Location]]] = {
    kind.scheme: kind for kind in (PosixShm, Files, Devices)
}


def register(kind: type[Location]) -> None:
    """Use this backend for the URLs of its scheme. ParameterError if the scheme is another's."""
    if _BACKENDS.setdefault(kind.scheme, kind) is not kind:
        raise ParameterError(f"{kind.scheme}:// is the scheme of another backend")


def unregister(kind: type[Location]) -> None:
    """Remove the backend."""
    if _BACKENDS.get(kind.scheme) is kind:
        del _BACKENDS[kind.scheme]


def backends() -> list[type[Location]]:
    return list(_BACKENDS.values())


def full_url(url: str) -> str:
    """The URL itself; for a bare name, shm://NAME."""
    return f"shm://{url}" if isinstance(url, str) and NAME.fullmatch(url) else url


def parse_url(url: str) -> Location:
    """The location that `url` names; ParameterError says what is wrong with the URL."""
    if not isinstance(url, str):
        raise ParameterError(f"a pool's URL is text such as 'shm://demo', not {url!r}")
    scheme, separator, rest = url.partition("://")
    if scheme == "net+etcd":
        scheme = "net"  # whose servers etcd knows
    if scheme == "net" and scheme not in _BACKENDS:
        register(late("limpet.shm.net.backend").Servers)
    if scheme == "etcd":
        raise ParameterError(
            f"{url!r} names etcd, and no pool; clients write net+etcd://HOST:PORT/NAME"
        )
    kind = _BACKENDS.get(scheme) if separator else None
    if kind is None:
        *others, last = [known.example for known in _BACKENDS.values()]
        raise ParameterError(f"{url!r} is not a pool's URL; write {', '.join(others)} or {last}")
    return kind.parse(url, rest)
