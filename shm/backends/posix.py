"""`shm://NAME`: POSIX shared memory /limpet.NAME.0 ... and /limpet.NAME.control. The default.

NAME is up to 200 letters, digits, `_`, `-` and `.`, and does not begin with a dot: it cannot name
another folder, and as segment names end in a component without a dot, no two pools share one. A
node whose memory was replaced has a new object, with the generation (states.py) behind a hyphen:
/limpet.NAME.0-1.

On Linux these are files in /dev/shm; except for their names and their creation they are used as
files (file.py). They are made with `posix_ipc`, which does not register them with
`multiprocessing`'s resource tracker; that tracker would unlink a live pool when any one process
that opened it ends.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import ClassVar, Final

import posix_ipc

from limpet.shm.backends.backend import Location
from limpet.shm.backends.explain import explained
from limpet.shm.backends.file import Files, named_files
from limpet.shm.backends.logind import remove_ipc_warning
from limpet.shm.endpoint.layout import CONTROL_NODE
from limpet.shm.errors import ParameterError, PoolExists, PoolPermission

SHM_DIR: Path = Path("/dev/shm")
"""Where glibc's shm_open puts POSIX shared memory on Linux."""

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")


@dataclasses.dataclass(frozen=True)
class PosixShm(Files):
    """The shared memory objects of the pool `name`."""

    scheme: ClassVar[str] = "shm"
    example: ClassVar[str] = "shm://NAME"

    @classmethod
    def parse(cls, url: str, rest: str) -> Location:
        if NAME.fullmatch(rest) is None:
            raise ParameterError(
                f"{url!r}: a pool's name is 1 to 200 letters, digits, '_', '-' and '.', "
                "and does not begin with '.'"
            )
        return cls(SHM_DIR, rest)

    @classmethod
    def everywhere(cls) -> list[Location]:
        with explained(f"{cls.scheme}://"):
            names = {named[0] for _, named in named_files(SHM_DIR, cls)}
        return [cls(SHM_DIR, name) for name in sorted(names)]

    @property
    def url(self) -> str:
        return f"shm://{self.name}"

    def file_name(self, index: int, generation: int) -> str:
        life = f"-{generation}" if generation else ""
        return f"limpet.{self.name}.{'control' if index == CONTROL_NODE else f'{index}{life}'}"

    @classmethod
    def named(cls, file_name: str) -> tuple[str, int, int] | None:
        prefix, _, rest = file_name.partition(".")
        pool, _, suffix = rest.rpartition(".")
        if prefix != "limpet" or NAME.fullmatch(pool) is None:
            return None
        found = super().named(suffix if suffix == "control" else f"node.{suffix}")
        return None if found is None else (pool, *found[1:])

    def create_exclusive(self, path: Path, where: str) -> int:
        try:
            return int(posix_ipc.SharedMemory(f"/{path.name}", posix_ipc.O_CREX, 0o600).fd)
        except posix_ipc.ExistentialError as error:
            raise PoolExists(f"{where} is there already; open the pool, or destroy it") from error
        except posix_ipc.PermissionsError as error:
            raise PoolPermission(f"{where} may not be created by this user") from error

    def check_folder(self, any_owner: bool) -> None:
        """Nothing: /dev/shm has the sticky bit, and the files of every user."""

    def warning(self) -> str | None:
        return remove_ipc_warning()
