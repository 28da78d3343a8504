from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.environment import parse_environment, parse_flags, variable_name
from headrace.config.given import ConfigError
from headrace.config.keys import all_keys, find_key
from headrace.config.load import check_file, load
from headrace.config.resolve import Effective, resolve
from headrace.config.settings import HeadraceSettings
from headrace.config.yaml_file import parse_yaml


def from_yaml(text: str) -> Effective:
    return resolve([parse_yaml(text, "h.yaml")])


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as e:
        from_yaml(text)
    return [str(p) for p in e.value.problems]


def test_nothing_given_is_every_default() -> None:
    effective = resolve([])
    assert effective.settings == HeadraceSettings()
    assert {origin for _, _, origin in effective.rows()} == {"default"}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("gateway:\n  http_port: 1\n  metrics_port: 11\n  max_in_flight: 21\n")
    environment = {"HEADRACE_GATEWAY__HTTP_PORT": "2", "HEADRACE_GATEWAY__METRICS_PORT": "12"}
    effective = load(file, sets=["gateway.http_port=3"], environment=environment)
    gateway = effective.settings.gateway
    assert (gateway.http_port, gateway.metrics_port, gateway.max_in_flight) == (3, 12, 21)
    assert effective.origin("gateway.http_port") == "--set gateway.http_port"
    assert effective.origin("gateway.metrics_port") == "HEADRACE_GATEWAY__METRICS_PORT"
    assert effective.origin("gateway.max_in_flight") == f"{file}:4"
    assert effective.origin("gateway.host") == "default"


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("gateway: {http_port: 1}\n")
    assert load(environment={"HEADRACE_CONFIG": str(file)}).settings.gateway.http_port == 1


def test_an_unknown_key_is_refused_with_its_line_and_what_was_meant() -> None:
    assert problems_of("gateway:\n  host: a\n  htp_port: 8000\n") == [
        "h.yaml:3: unknown key gateway.htp_port, did you mean gateway.http_port?"
    ]


def test_a_key_in_the_wrong_section_is_told_where_it_belongs() -> None:
    assert problems_of("worker:\n  http_port: 8000\n") == [
        "h.yaml:2: unknown key worker.http_port, did you mean gateway.http_port?"
    ]


def test_a_misspelt_section_gives_one_complaint() -> None:
    assert problems_of("gatway:\n  http_port: 1\n  host: b\n") == [
        "h.yaml:1: unknown key gatway, did you mean gateway?"
    ]


def test_a_wrong_value_names_key_line_value_and_what_is_allowed() -> None:
    assert problems_of("gateway:\n  http_port: 99999\n") == [
        "h.yaml:2: gateway.http_port: 99999 is not allowed; allowed: whole number, 0 to 65,535 (default 8000)"
    ]
    assert problems_of("worker:\n  log_level: loud\n") == [
        "h.yaml:2: worker.log_level: 'loud' is not allowed; allowed: debug | info | warning | error (default 'info')"
    ]


def test_true_is_not_a_number() -> None:
    (problem,) = problems_of("gateway:\n  http_port: true\n")
    assert problem.startswith("h.yaml:2: gateway.http_port: true is not allowed")


def test_a_name_that_yaml_reads_as_false_is_told_to_be_quoted() -> None:
    (problem,) = problems_of("gateway:\n  name: no\n")
    assert "put it in quotes" in problem


def test_a_default_service_that_does_not_exist_is_refused_where_it_was_given() -> None:
    assert problems_of("gateway:\n  default_service: x\n") == [
        "h.yaml:2: gateway.default_service: 'x' is not among gateway.services (default)"
    ]
    assert problems_of("gateway:\n  services:\n    a: {groups: [g]}\n") == [
        "h.yaml:3: gateway.default_service: 'default' is not among gateway.services (a)"
    ]


def test_a_default_deadline_over_the_longest_is_refused() -> None:
    (problem,) = problems_of("gateway:\n  max_timeout_ms: 1000\n")
    assert problem == "h.yaml:2: gateway.default_timeout_ms: 30000 is over gateway.max_timeout_ms (1000)"


def test_two_parts_on_one_port_are_refused_unless_it_is_any() -> None:
    (problem,) = problems_of("gateway:\n  metrics_port: 8000\n")
    assert problem == "h.yaml:2: gateway.metrics_port: 8000 is the port of gateway.http_port as well"
    assert from_yaml("gateway: {metrics_port: 0, http_port: 0}\n").settings.gateway.http_port == 0


def test_every_problem_is_listed_at_once() -> None:
    text = "gateway:\n  http_port: -1\n  metrics_port: x\nworker:\n  num_processes: 0\n"
    assert [p.split(":")[1] for p in problems_of(text)] == ["2", "3", "5"]


def test_a_key_given_twice_names_both_lines() -> None:
    assert problems_of("gateway:\n  host: a\n  host: b\n") == ["h.yaml:3: gateway.host is given twice, first in line 2"]


@pytest.mark.parametrize("text", ["- a\n- b\n", "5\n", "gateway:\n  - a\n", "gateway: 5\n"])
def test_a_value_where_a_section_belongs_is_refused_with_its_line(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.startswith("h.yaml:")
    assert "section" in problem


def test_broken_yaml_names_its_line() -> None:
    (problem,) = problems_of("gateway:\n  host: 'a\n")
    assert problem.startswith("h.yaml:3: not valid YAML")


def test_a_file_that_holds_itself_is_refused() -> None:
    with pytest.raises(ConfigError):
        from_yaml("gateway: &a\n  services: *a\n")


def test_an_empty_file_and_an_empty_section_are_fine() -> None:
    assert from_yaml("").settings == HeadraceSettings()
    assert from_yaml("gateway:\nworker: {}\n").settings == HeadraceSettings()


def test_services_have_the_users_own_names() -> None:
    service_lines = "    com.example:\n      groups: [a, b]\n      models: {m.1: b}\n"
    effective = from_yaml("gateway:\n  default_service: com.example\n  services:\n" + service_lines)
    service = effective.settings.gateway.services["com.example"]
    assert service.groups == ["a", "b"]
    assert service.models == {"m.1": "b"}


def test_a_broker_for_all_reaches_gateway_and_workers() -> None:
    settings_ = from_yaml(
        "broker:\n  servers: ['nats://b:1']\nworker:\n  broker:\n    servers: ['nats://w:1']\n"
    ).settings
    assert settings_.gateway.broker.servers == ["nats://b:1"]
    assert settings_.worker.broker.servers == ["nats://w:1"]


def test_the_shared_broker_of_a_higher_layer_wins() -> None:
    file = parse_yaml("worker:\n  broker:\n    user: from-file\n", "h.yaml")
    environment = parse_environment({"HEADRACE_BROKER__USER": "from-env"})
    assert resolve([file, environment]).settings.worker.broker.user == "from-env"


def test_lists_in_the_environment_are_split_at_commas() -> None:
    effective = resolve([parse_environment({"HEADRACE_WORKER__MODELS": "a, b", "HEADRACE_BROKER__SERVERS": "[x, y]"})])
    assert effective.settings.worker.models == ["a", "b"]
    assert effective.settings.broker.servers == ["x", "y"]


@pytest.mark.parametrize("name", ["HEADRACE_GATEWAY_HTTP_PORT", "HEADRACE_GATWAY__HTTP_PORT", "HEADRACE_GATEWAY__PORT"])
def test_a_misspelt_variable_is_refused_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve([parse_environment({name: "1"})])


def test_variables_that_are_no_settings_are_left_alone() -> None:
    assert parse_environment({"HEADRACE_TEST": "1", "HOME": "/", "HEADRACE_CONFIG": "f"}) == []


def test_a_wrong_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"^HEADRACE_GATEWAY__HTTP_PORT: gateway.http_port: 'x' is not allowed"):
        resolve([parse_environment({"HEADRACE_GATEWAY__HTTP_PORT": "x"})])


def test_a_set_flag_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_flags(["gateway.http_port"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: can't be read: No such file"):
        check_file(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("key", [k for k in all_keys() if "*" not in k.pattern], ids=lambda k: k.pattern)
def test_every_key_can_be_given_by_a_variable(key) -> None:
    name = variable_name(key.pattern)
    (found,) = parse_environment({name: "1"})
    assert find_key(found.path) == key


@pytest.mark.parametrize("key", list(all_keys()), ids=lambda k: k.pattern)
def test_every_key_says_what_it_does_and_takes(key) -> None:
    assert key.description.endswith(".")
    assert key.allowed
    assert "typing" not in key.allowed
    assert "class" not in key.allowed


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_settings_or_problems_with_a_place(text: str) -> None:
    problems = None
    try:
        from_yaml(text)
    except ConfigError as e:
        problems = e.problems
    assert problems is None or (problems and all(p.origin.startswith("h.yaml") for p in problems))
