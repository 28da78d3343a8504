# ruff: noqa: ASYNC240 - small files of the test's own
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.watched import RefusedFile, WatchedFile, WatchedFiles
from tests.support.waiting import Inbox


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("one")
    return file


def watch(path: Path, applied: list[str]) -> WatchedFile[str]:
    def parse() -> str:
        text = path.read_text() if path.exists() else "bad"
        if text == "bad":
            raise RefusedFile(f"{path}:1: it is bad")
        return text

    def apply(text: str) -> dict[str, object]:
        applied.append(text)
        return {"size": len(text)}

    return WatchedFile("thing", [path], parse, apply)


async def test_a_change_is_applied_once_it_rests(path: Path) -> None:
    applied: list[str] = []
    file = watch(path, applied)
    assert not await file.look()
    path.write_text("second")
    assert not await file.look()
    path.write_text("second and last")
    assert not await file.look(), "it was still being written"
    assert await file.look()
    assert not await file.look()
    assert applied == ["second and last"]


@pytest.mark.parametrize("spoil", [lambda p: p.write_text("bad"), Path.unlink], ids=["bad", "gone"])
async def test_a_bad_file_is_refused_once_and_the_next_good_one_applied(
    path: Path, spoil: Callable[[Path], object]
) -> None:
    applied: list[str] = []
    file = watch(path, applied)
    spoil(path)
    with capture_logs() as logs:
        for _ in range(4):
            await file.look()
    assert [(e["event"], e["error"]) for e in logs] == [("file-refused", f"{path}:1: it is bad")]
    assert (applied, file.num_refused, file.refusal) == ([], 1, f"{path}:1: it is bad")
    path.write_text("good again")
    await file.look()
    assert await file.look()
    assert (applied, file.refusal) == (["good again"], "")


async def test_a_file_that_takes_anothers_place_is_a_change(path: Path) -> None:
    applied: list[str] = []
    file = watch(path, applied)
    other = path.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    await file.look()
    assert await file.look()
    assert applied == ["two"]


async def test_watching_and_being_told_both_read_it(path: Path) -> None:
    applied = Inbox()
    files = WatchedFiles([watch(path, applied)])
    files.start()
    files.reload()
    await applied.has(1)
    path.write_text("watched")
    await applied.has(2)
    await files.close()
    assert applied == ["one", "watched"]
