"""Hooks of MkDocs: the documentation site has more than the pages of docs/.

The pages beside docs/ are taken in, the README as the start page, and their links are written anew.
So each page is read on a code forge and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
FILES = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "examples/grafana.json": "grafana.json",
    "LICENSE": "LICENSE.txt",
    **{name: name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
}
"""Files outside docs/, and their names on the site."""
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    for path, name in FILES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead each link to the place that its file has on the site."""
    sources = {name: path for path, name in FILES.items()}
    source = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def on_site(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.is_relative_to(ROOT):
            return link[0]
        path = target.relative_to(ROOT).as_posix()
        return link[1] + FILES.get(path, path.removeprefix("docs/")) + link[3]

    return LINK.sub(on_site, markdown)
