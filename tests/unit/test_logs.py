import json
import subprocess
import sys

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
