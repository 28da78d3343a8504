"""Read the texts that people rated for VADER: tweets, reviews, editorials and single words, each from -4 to 4.

They lie in the source archive of the package vaderSentiment (MIT), its wheel leaves them out: pip downloads that
archive, by the digest in requirements/data.txt, and nothing of it is installed.

Source: Hutto and Gilbert, VADER, ICWSM 2014; the archive's hutto_ICWSM_2014.tar.gz.
"""

from __future__ import annotations

import functools
import html
import io
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements" / "data.txt"
INNER_ARCHIVE = "additional_resources/hutto_ICWSM_2014.tar.gz"
SOURCES = {
    "tweets": "tweets",
    "amazon reviews": "amazonReviewSnippets",
    "film reviews": "movieReviewSnippets",
    "editorials": "nytEditorialSnippets",
}
LEXICON = "lexicon"
DOWNLOAD_S = 120


@dataclass(frozen=True, slots=True)
class RatedText:
    """A sentence or a word, and what people thought of it on average."""

    source: str
    text: str
    rating: float


@functools.cache
def rated_texts() -> tuple[RatedText, ...]:
    """All of them, in the archive's order."""
    with tempfile.TemporaryDirectory() as folder:
        archive = _downloaded(Path(folder))
        with tarfile.open(archive) as outer:
            inner = _content(outer, INNER_ARCHIVE)
    found: list[RatedText] = []
    with tarfile.open(fileobj=io.BytesIO(inner)) as files:
        for source, name in SOURCES.items():
            lines = _content(files, f"{name}_GroundTruth.txt").decode("utf-8", errors="replace").splitlines()
            rows = [line.split("\t") for line in lines]
            found += [RatedText(source, html.unescape(text.strip()), float(rating)) for _, rating, text in rows]
        lines = _content(files, "vader_sentiment_lexicon.txt").decode("utf-8", errors="replace").splitlines()
        found += [RatedText(LEXICON, word, float(rating)) for word, rating, *_ in (line.split("\t") for line in lines)]
    return tuple(found)


def _downloaded(folder: Path) -> Path:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"]
    plain = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "download", *quiet, *plain, "--requirement", REQUIREMENTS, "--dest", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"pip could not download what {REQUIREMENTS.name} names:\n{done.stderr.strip()}")
    (archive,) = folder.iterdir()
    return archive


def _content(archive: tarfile.TarFile, ending: str) -> bytes:
    (name,) = [name for name in archive.getnames() if name.endswith(f"/{ending}") and "/._" not in name]
    file = archive.extractfile(name)
    assert file is not None, f"{name} is no file"
    return file.read()
