from pathlib import Path

from headrace.config import docs
from headrace.config.load import check_file
from headrace.config.settings import HeadraceSettings

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_is_what_the_settings_say() -> None:
    assert (ROOT / docs.MARKDOWN).read_text() == docs.markdown(), "run: python -m headrace.config.docs"


def test_the_example_file_is_what_the_settings_say() -> None:
    assert (ROOT / docs.EXAMPLE).read_text() == docs.example(), "run: python -m headrace.config.docs"


def test_the_example_file_changes_nothing() -> None:
    assert check_file(ROOT / docs.EXAMPLE).settings == HeadraceSettings()
