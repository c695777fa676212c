"""A warning if logind deletes this user's shared memory at logout (`RemoveIPC=`).

By default it does so when a user's last session ends, except for system users; it takes the pools
in /dev/shm away from processes that still run. limpet warns when it makes a pool there.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

SYSTEM_UID_MAX: Final = 999
_FALSE: Final = frozenset({"0", "no", "n", "false", "f", "off"})


def remove_ipc_warning(root: Path = Path("/"), uid: int | None = None) -> str | None:
    """A warning if logind will delete the pools of `uid` (this user) at logout, else None."""
    uid = os.geteuid() if uid is None else uid
    if uid <= SYSTEM_UID_MAX or not (root / "run/systemd/seats").is_dir():
        return None
    if _lingers(root, uid) or not _removes_ipc(root):
        return None
    return (
        "logind deletes your shared memory, this pool included, when you log out (RemoveIPC=yes); "
        "run `loginctl enable-linger`, set RemoveIPC=no in /etc/systemd/logind.conf, "
        "or use a file:// pool on a tmpfs of your own"
    )


def _lingers(root: Path, uid: int) -> bool:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return False
    return (root / "var/lib/systemd/linger" / name).exists()


def _removes_ipc(root: Path) -> bool:
    """The last `RemoveIPC=` in a `[Login]` section wins; drop-ins come after the main files."""
    folders = [root / folder / "systemd" for folder in ("usr/lib", "run", "etc")]
    files = [folder / "logind.conf" for folder in folders]
    drop_ins = [file for folder in folders for file in folder.glob("logind.conf.d/*.conf")]
    removes = True
    for file in files + sorted(drop_ins, key=lambda file: file.name):
        if not os.access(file, os.R_OK):
            continue
        section = ""
        for line in file.read_text("utf-8", "replace").splitlines():
            line = line.strip()
            if line.startswith("["):
                section = line
            key, _, value = line.partition("=")
            if section == "[Login]" and key.strip() == "RemoveIPC":
                removes = value.strip().lower() not in _FALSE
    return removes
