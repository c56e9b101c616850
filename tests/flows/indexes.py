"""An index of Python packages in a folder, as pip and uv read one: wheels, and a page of links for each project."""

from __future__ import annotations

import zipfile
from pathlib import Path

# https://packaging.python.org/en/latest/specifications/simple-repository-api/
# https://packaging.python.org/en/latest/specifications/binary-distribution-format/


class Index:
    """Wheels of one module each, made on the spot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = (folder / "simple").as_uri()

    def put(self, name: str, version: str, text: str) -> None:
        """Offer a module of this name as a project."""
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        file, info = f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
        contents = {
            f"{name}.py": text,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{inner},,\n" for inner in [*contents, f"{info}/RECORD"])
        with zipfile.ZipFile(page / file, "w") as archive:
            for inner, written in {**contents, f"{info}/RECORD": record}.items():
                archive.writestr(inner, written)
        links = sorted(path.name for path in page.glob("*.whl"))
        (page / "index.html").write_text("".join(f'<a href="{link}">{link}</a>\n' for link in links))
