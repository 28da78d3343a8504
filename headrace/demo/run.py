"""The demo's frame: check the models, start everything in a folder of its own, tell the blocks, stop everything."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from headrace.config.load import load
from headrace.demo.blocks import BLOCKS
from headrace.demo.stage import HOT_LOADED, Stage
from headrace.launcher import Launcher, StartFailed
from headrace.say import Say
from headrace.up import CANT_START, stop_signals, unless

NUM_WORKERS = 2
MODELS = ("toxicity", "minilm", "sentiment", "intent")
MODEL_FILES = (
    "toxicity/1/model.onnx",
    "minilm/1/model.onnx",
    "minilm/1/tokenizer.json",
    "sentiment/1/model.onnx",
    "sentiment/2/model.onnx",
    "intent/1/model.onnx",
)
POLL_S = 0.5
"""How often the workers look for the version that a block adds."""
EXIT_INTERRUPTED = 130


async def run(repository: Path) -> int:
    """The whole story; 0 only if every answer was right."""
    say = Say()
    missing = [name for name in MODEL_FILES if not (repository / name).is_file()]
    if missing:
        say.warning(f"{repository / missing[0]} is missing: `make models` builds it")
        return 1
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        return await _run(repository, Path(folder), say)


async def _run(repository: Path, folder: Path, say: Say) -> int:
    watched = _watched(repository, folder / "models")
    sets = [
        f"up.data_dir={folder / 'data'}",
        f"worker.model_repository={watched}",
        f"worker.num_processes={NUM_WORKERS}",
        "worker.model_control_mode=poll",
        f"worker.repository_poll_s={POLL_S}",
    ]
    launcher = Launcher(load(sets=sets).settings, say)
    async with stop_signals() as (stop, on_second):
        on_second.append(launcher.kill)
        is_right = False
        try:
            is_right = await unless(stop, _tell(launcher, repository, watched, say)) or False
        except CANT_START as e:
            say.warning(str(e))
        finally:
            if stop.is_set():
                launcher.kill()  # a block that waits for an answer in a thread ends with its connection
            await launcher.stop()
        say.step("stopped", "none of its processes is left")
    if stop.is_set():
        return EXIT_INTERRUPTED
    say.text("demo: ok" if is_right else "demo: failed")
    return 0 if is_right else 1


def _watched(repository: Path, folder: Path) -> Path:
    """A repository of links to the models; of the one that is loaded anew later only what is served at first."""
    folder.mkdir()
    for model in MODELS:
        source = (repository / model).resolve()
        if model != HOT_LOADED:
            (folder / model).symlink_to(source, target_is_directory=True)
            continue
        (folder / model).mkdir()
        for item in source.iterdir():
            if item.name != "2":
                (folder / model / item.name).symlink_to(item)
    return folder


async def _tell(launcher: Launcher, repository: Path, watched: Path, say: Say) -> bool:
    """Every block, whatever the one before said; ends when a part dies for good."""
    running = await launcher.start()
    if running.failed:
        raise StartFailed("; ".join(f"model {name}: {reason}" for name, reason in running.failed))
    stage = Stage(running, repository, watched, say)
    telling = asyncio.create_task(_blocks(stage))
    dying = asyncio.create_task(launcher.wait())
    try:
        await asyncio.wait([telling, dying], return_when=asyncio.FIRST_COMPLETED)
        if not telling.done():
            raise StartFailed(await dying)
        return telling.result()
    finally:
        # Whoever stops the parts now must not see them started again.
        telling.cancel()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)


async def _blocks(stage: Stage) -> bool:
    verdicts = [await block(stage) for block in BLOCKS]
    return all(verdicts)
