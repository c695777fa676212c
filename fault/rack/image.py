"""The needs of the rack, and the initial file system from which its machines boot.

Needed are qemu, a kernel of the distribution with its modules, a static busybox and ndctl. Nothing
is fetched here: `look` says what is missing and how to get it.

The initial file system is an archive of the format "newc" (Documentation/driver-api/early-userspace
of the kernel), made here in memory:

    init               a shell script, from `script`
    bin/busybox        the host's
    modules/NN-X.ko    the kernel modules, numbered in the order in which they are loaded

The script loads the modules, mounts the host's root file system over 9p, read-only, makes device
DAX of the NVDIMMs (machine "a" formats them when they are not yet, so `Rack` starts it first), and
runs the agent in a root that is the host's: with this Python, this limpet, and the host's ndctl.

Modules name what they need in their own `.modinfo` section (`depends=a,b`), so no index made by
depmod is needed.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import limpet
from limpet.shm.errors import LimpetError

MODULES: Final = (
    "virtio_pci", "9p", "9pnet_virtio", "libnvdimm", "nfit", "nd_pmem", "device_dax", "dax_pmem",
)  # fmt: skip
"""Kernel modules that a machine needs, without those on which they depend."""
CXL_MODULES: Final = ("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_pmem", "kmem")
"""Those that a machine with CXL memory needs, too."""
FSDAX_MODULES: Final = ("crc32c_generic", "libcrc32c", "ext4")
"""Those that a machine with a file system on its NVDIMM needs, too."""
PROGRAMS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "ndctl": "ndctl",
    "busybox": "busybox-static",
    "cxl": "ndctl",
    "daxctl": "daxctl",
    "mkfs.ext4": "e2fsprogs",
}
"""Programs of the host, and the Debian packages that have them."""
MODE_FILE: Final = 0o100755
MODE_FOLDER: Final = 0o40755
DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")


class RackError(LimpetError):
    """The rack cannot be run, or a machine did not do what was asked of it."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """The programs and files that a rack is made of."""

    qemu: Path
    busybox: Path
    kernel: Path
    modules: Path


def look(build: Path) -> Needs:
    """The needs of the rack; a kernel package in the folder `build` is unpacked there.

    Raises RackError, which says what is missing and how to get it.
    """
    lacking = [package for name, package in PROGRAMS.items() if shutil.which(name) is None]
    missing = list(dict.fromkeys(lacking))
    packages = sorted(build.glob("linux-image-*.deb"))
    kernel = next(iter(sorted(build.glob("kernel/boot/vmlinuz-*"))), None)
    if kernel is None and packages and shutil.which("dpkg-deb"):
        subprocess.run(["dpkg-deb", "-x", packages[-1], build / "kernel"], check=True, timeout=300)
        kernel = next(iter(sorted(build.glob("kernel/boot/vmlinuz-*"))), None)
    if missing or kernel is None:
        raise RackError(_how_to_get(missing, build, kernel is None))
    version = kernel.name.removeprefix("vmlinuz-")
    qemu, _, busybox, *_ = (Path(str(shutil.which(name))) for name in PROGRAMS)
    return Needs(qemu, busybox, kernel, build / "kernel/lib/modules" / version)


def _how_to_get(missing: Sequence[str], build: Path, no_kernel: bool) -> str:
    lines = ["the rack lacks what it needs. On Debian:"]
    if missing:
        lines.append(f"    apt-get install --no-install-recommends {' '.join(missing)}")
    if no_kernel:
        lines += [
            f"    mkdir -p {build} && cd {build}",
            "    apt-get download $(apt-cache depends linux-image-amd64 | "
            "sed -n 's/.*Depends: //p' | head -1)",
        ]
    return "\n".join(lines)


# ---- modules -----------------------------------------------------------------------------------


def module_order(folder: Path, wanted: Sequence[str]) -> list[Path]:
    """The files of the `wanted` modules and of all that they need, each after what it needs.

    `folder`: `lib/modules/VERSION`. A module that is built into the kernel has no file, and is left
    out. Raises RackError for one that the kernel has not at all, or whose needs form a circle.
    """
    files = {_name(path.name): path for path in sorted(folder.rglob("*.ko"))}
    built_in = {_name(Path(line).name) for line in _lines(folder / "modules.builtin")}
    order: list[Path] = []
    done: set[str] = set()

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in done or name in built_in:
            return
        if name in above:
            raise RackError(f"kernel modules need each other: {' -> '.join((*above, name))}")
        if name not in files:
            raise RackError(f"{folder} has no kernel module {name}, which the rack needs")
        for needed in needs_of(files[name].read_bytes()):
            add(needed, (*above, name))
        done.add(name)
        order.append(files[name])

    for name in wanted:
        add(_name(name), ())
    return order


def needs_of(module: bytes) -> list[str]:
    """The modules that this module, as its file has it, says that it needs."""
    found = DEPENDS.search(module)
    names = found[1].decode("ascii").split(",") if found else []
    return [_name(name) for name in names if name]


def _name(file: str) -> str:
    return file.split(".ko")[0].replace("-", "_")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# ---- the archive -------------------------------------------------------------------------------


def archive(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive "newc" of (path, mode, content); folders come before what is in them."""
    made = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
        made += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        made += bytes(-len(made) % 4) + content
        made += bytes(-len(made) % 4)
    return bytes(made)


def initial(needs: Needs, agent: Sequence[str], wanted: Sequence[str] = MODULES) -> bytes:
    """The compressed initial file system of a machine; `agent` is the program's command, `wanted`
    are the modules to load."""
    modules = module_order(needs.modules, wanted)
    loaded = [(f"modules/{n:02}-{path.name}", path) for n, path in enumerate(modules)]
    folders = ("bin", "dev", "host", "modules", "proc", "sys")
    entries = [
        *((name, MODE_FOLDER, b"") for name in folders),
        ("bin/busybox", MODE_FILE, needs.busybox.read_bytes()),
        *((name, MODE_FILE, path.read_bytes()) for name, path in loaded),
        ("init", MODE_FILE, script([name for name, _ in loaded], agent).encode()),
    ]
    return gzip.compress(archive(entries), 1)


def agent_command() -> list[str]:
    """How the agent is run inside: this Python and this limpet, by the host's paths."""
    where = Path(limpet.__file__).resolve().parent.parent
    environment = f"PYTHONPATH={where}"
    return ["/usr/bin/env", environment, sys.executable, "-u", "-m", "limpet.fault.rack.agent"]


def script(modules: Sequence[str], agent: Sequence[str]) -> str:
    """The first program of a machine."""
    load = "\n".join(f"insmod /{name}" for name in modules)
    return f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
{load}
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /host
for folder in proc sys dev; do mount --bind /$folder /host/$folder; done
mount -t tmpfs run /host/run
mkdir -p /dev/shm
mount -t tmpfs shm /host/dev/shm
name=$(sed -n 's/.*rack.name=\\([^ ]*\\).*/\\1/p' /proc/cmdline)
hostname "$name"
for space in /sys/bus/nd/devices/namespace*.0; do
    number=${{space##*namespace}}; number=${{number%.0}}
    [ "$name" = a ] && [ ! -e /dev/dax$number.0 ] && TMPDIR=/run chroot /host ndctl \\
        create-namespace -f -e namespace$number.0 -m devdax -M mem > /dev/null
done
echo "rack: $(uname -r), up for $(cut -d' ' -f1 /proc/uptime) s, $(ls /dev | grep -c '^dax') DAX"
LIMPET_HOST=rack-$name TMPDIR=/run HOME=/run chroot /host {shlex.join(agent)} /dev/ttyS1
echo "rack: the agent ended with status $?"
poweroff -f
"""
