import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.running import REPOSITORY


def start(cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace.demo", str(REPOSITORY)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_demo_tells_its_story_and_is_right(tmp_path: Path) -> None:
    process = start(tmp_path)
    output, _ = process.communicate(timeout=100)
    lines = output.splitlines()
    assert process.returncode == 0, output
    assert lines[-1] == "demo: ok"
    assert len(lines) <= 65
    assert len(re.findall(r"^ +(toxic|fine) +[\d.]+% .* ms   ", output, re.MULTILINE)) == 5
    assert re.search(r"answered: \d{3,} by version 1, \d{3,} by version 2; failed: 0\n", output)
    assert len(re.findall(r"^ +(negative|neutral|positive) +\d+% .*%   ", output, re.MULTILINE)) == 4
    assert len(re.findall(r"^ +(toxic|fine) +(negative|neutral|positive) ", output, re.MULTILINE)) == 6
    assert "200 of 200 answered, slowest " in output
    assert output.count("by hand, while `make up` runs: ") == 5
    assert "by hand, while `make up` runs: kill -9 PID, of a worker that `" in output
    assert "pkill" not in output
    assert "none of its processes is left" in output
    assert "\x1b" not in output
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None
    family: list[psutil.Process] = []
    for line in process.stdout:
        if "five chat messages" in line:
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            break
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert len(family) >= 4
    assert psutil.wait_procs(family, timeout=20)[1] == []
    assert "demo: ok" not in output


def test_without_models_the_demo_says_how_to_build_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.demo", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "is missing: `make models` builds it" in ended.stdout
