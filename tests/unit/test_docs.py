import re
from pathlib import Path

import pytest

from contract.streams import MIB
from headrace.broker import reserved_bytes
from headrace.config import docs
from headrace.config.load import check_file
from headrace.config.settings import HeadraceSettings
from transport.settings import BrokerSettings

ROOT = Path(__file__).parents[2]
PACKAGES = ("contract", "transport", "gateway", "workers", "headrace")
PARTS = ["Context", "Decision", "Consequences", "What would change our mind"]


def test_the_configuration_page_is_what_the_settings_say() -> None:
    assert (ROOT / docs.MARKDOWN).read_text() == docs.markdown(), "run: python -m headrace.config.docs"


def test_the_example_file_is_what_the_settings_say() -> None:
    assert (ROOT / docs.EXAMPLE).read_text() == docs.example(), "run: python -m headrace.config.docs"


def test_the_example_file_changes_nothing() -> None:
    assert check_file(ROOT / docs.EXAMPLE).settings == HeadraceSettings()


def test_the_compose_broker_has_room_for_what_the_streams_reserve() -> None:
    text = (ROOT / "deploy/nats-server.conf").read_text()
    assert "max_memory_store: 1GB" in text
    assert reserved_bytes(BrokerSettings()) < 10**9
    assert f"{reserved_bytes(BrokerSettings()) // MIB} MiB" in text


PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "THIRD_PARTY.md", "subjects.md", "examples/README.md")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if (ROOT / p).exists()]
    + [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))],
)
def test_links_lead_to_files_of_the_repository(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        if "://" not in target:
            found = ((ROOT / page).parent / target).resolve()
            assert found.exists(), target
            assert found.is_relative_to(ROOT), target


def test_the_tests_that_the_code_names_exist() -> None:
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    named = {found for path in sources for found in re.findall(r"\btests/[\w/.]*\w", path.read_text())}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_decisions_are_numbered_without_a_gap_and_have_the_four_parts() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [p.name[:4] for p in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: ")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS, page.name


def test_the_architecture_page_names_every_decision() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert [p.name for p in (ROOT / "docs/decisions").glob("*.md") if f"(decisions/{p.name})" not in text] == []
