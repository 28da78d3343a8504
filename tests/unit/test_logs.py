import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception"}
CODE = """
import structlog
from transport.logs import configure_logs
configure_logs("info", process="test")

def handle(authorization, payload):
    raise ValueError("it broke")

try:
    handle("Bearer " + "se" + "cret-key", b"sec" + b"ret-payload")
except ValueError:
    structlog.get_logger().exception("request-broke-the-door", request_id="r1")
"""


def logged(prelude: str = "") -> str:
    return subprocess.run(
        [sys.executable, "-c", prelude + CODE], capture_output=True, text=True, timeout=60, check=True
    ).stderr


def test_a_traceback_is_one_json_line_without_the_values_of_its_variables() -> None:
    (line,) = logged().splitlines()
    event = json.loads(line)
    assert event["event"] == "request-broke-the-door"
    assert event["exception"][0]["exc_value"] == "it broke"
    assert "secret" not in line


def test_on_a_terminal_a_traceback_has_no_values_either() -> None:
    text = logged("import sys; sys.stderr.isatty = lambda: True\n")
    assert "it broke" in text
    assert "secret" not in text


def events(package: str) -> list[tuple[str, str]]:
    found = []
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id in {"log", "_log"} and node.args:
                event = node.args[0]
                found += [(str(file), event.value)] if isinstance(event, ast.Constant) else []
    return found


def test_events_have_names_that_can_be_searched_for_and_no_sentences() -> None:
    found = [each for package in ("transport", "gateway", "workers", "headrace") for each in events(package)]
    assert len(found) > 50
    assert [(file, event) for file, event in found if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", event)] == []
