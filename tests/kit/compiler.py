"""A compiler that does not compile again what the tree has, for tests of packaging.

Run as `CC="python compiler.py"`. C that Cython made, and that is the same as beside a module of the
tree, becomes an object that only names that module; and where such an object is linked, the module
is copied. All else is gcc's, or CC's of the tree's build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = b"compiled already: "
_SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")
_METADATA: Final = re.compile(rb"/\* BEGIN: Cython Metadata.*?END: Cython Metadata \*/", re.S)
"""It has the flags of the build."""


def made_of(source: str) -> Path | None:
    """The tree's module of the same C, if it has one."""
    theirs = ROOT / source
    made = theirs.with_name(theirs.stem + _SUFFIX)
    if not source.endswith(".c") or not theirs.exists() or not made.exists():
        return None
    texts = {_METADATA.sub(b"", path.read_bytes(), count=1) for path in (theirs, Path(source))}
    return made if len(texts) == 1 else None


def main(arguments: list[str]) -> int:
    output = Path(arguments[arguments.index("-o") + 1]) if "-o" in arguments else None
    if output is not None and "-c" in arguments:
        for source in arguments:
            if made := made_of(source):
                output.write_bytes(NAMES + bytes(made))
                return 0
    elif output is not None:
        for given in arguments:
            if given.endswith(".o") and (text := Path(given).read_bytes()).startswith(NAMES):
                shutil.copy(text.removeprefix(NAMES).decode(), output)
                return 0
    return subprocess.run(["cc", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
