"""The `headrace` command. Parses and prints; everything heavy is imported inside the command that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from headrace import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headrace.config.resolve import Effective
    from headrace.config.settings import HeadraceSettings

app = typer.Typer(
    name="headrace",
    help="Message-queue based online and batch inference on one pool of workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(no_args_is_help=True, help="What is configured, and from where.")
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; else HEADRACE_CONFIG names it.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of docs/configuration.md.")]
HttpPort = Annotated[int | None, typer.Option(help="Port of the HTTP door.")]
MetricsPort = Annotated[int | None, typer.Option(help="Port of /metrics.")]
Processes = Annotated[int | None, typer.Option("--workers", "-w", help="Worker processes.")]
Repository = Annotated[Path | None, typer.Argument(metavar="[REPO]", help="Model repository in Triton's layout.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the broker's files and logs.")]
Url = Annotated[str | None, typer.Option(help="Gateway; else that of the running `headrace up`.")]
ApiKey = Annotated[str, typer.Option(envvar="HEADRACE_API_KEY", help="Key, where the gateway has tenants.")]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Message-queue based online and batch inference on one pool of workers."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"headrace {__version__}")


@app.command()
def up(
    *,
    repository: Repository = None,
    config: ConfigFile = None,
    http_port: HttpPort = None,
    metrics_port: MetricsPort = None,
    broker_port: Annotated[int | None, typer.Option(help="Port of nats-server.")] = None,
    workers: Processes = None,
    data_dir: DataDir = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show the logs here instead of in files.")] = False,
    sets: Sets = None,
) -> None:
    """Run a broker, a gateway and workers on this machine until Ctrl-C."""
    import asyncio

    from headrace.say import Say
    from headrace.up import up as run

    effective = _load(
        config,
        sets,
        {
            "worker.model_repository": ("REPO", repository),
            "gateway.http_port": ("--http-port", http_port),
            "gateway.metrics_port": ("--metrics-port", metrics_port),
            "up.broker_port": ("--broker-port", broker_port),
            "worker.num_processes": ("--workers", workers),
            "up.data_dir": ("--data-dir", data_dir),
        },
    )
    _need("gateway", "worker")
    raise typer.Exit(asyncio.run(run(effective.settings, Say(), show_logs=logs)))


@app.command()
def gateway(
    config: ConfigFile = None, http_port: HttpPort = None, metrics_port: MetricsPort = None, sets: Sets = None
) -> None:
    """Run one gateway against a broker that is already there."""
    _need("gateway")
    from headrace.roles import run_gateway

    flags = {
        "gateway.http_port": ("--http-port", http_port),
        "gateway.metrics_port": ("--metrics-port", metrics_port),
    }
    raise typer.Exit(run_gateway(_load(config, sets, flags).settings.gateway))


@app.command()
def worker(
    repository: Repository = None, config: ConfigFile = None, workers: Processes = None, sets: Sets = None
) -> None:
    """Run a pool of workers against a broker that is already there."""
    _need("worker")
    from headrace.roles import run_workers

    flags = {"worker.model_repository": ("REPO", repository), "worker.num_processes": ("--workers", workers)}
    run_workers(_load(config, sets, flags).settings.worker)


@app.command()
def infer(
    *,
    model: Annotated[str, typer.Argument(help="Model name.")],
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help="VALUE is JSON, or text.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A row of the model's text input.")] = None,
    version: Annotated[str, typer.Option(help="Model version; else the newest that serves.")] = "",
    timeout_s: Annotated[float, typer.Option(help="Deadline, seconds.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    url: Url = None,
    nats: Annotated[str | None, typer.Option(help="Ask over NATS: nats://host:port of the broker.")] = None,
    key: ApiKey = "",
    config: ConfigFile = None,
) -> None:
    """Ask a model and print its answer."""
    from contract.errors import HeadraceError, NotFound
    from headrace.ask import ask_http, ask_nats, lines_of

    try:
        if nats is not None:
            answer = ask_nats(nats, model, inputs or [], text or [], timeout_s=timeout_s)
        else:
            where = url or _http_url(config)
            answer = ask_http(where, model, inputs or [], text or [], version=version, timeout_s=timeout_s, key=key)
    except HeadraceError as e:
        is_unknown = isinstance(e, NotFound) and nats is None and url is None
        _fail(f"{e.code}: {e.message}{_other_models(config, model) if is_unknown else ''}")
    for line in lines_of(answer, as_json=as_json):
        typer.echo(line)


@app.command()
def models(config: ConfigFile = None, sets: Sets = None) -> None:
    """List the models that workers offer, with versions and states."""
    from headrace.status import print_models

    _run(print_models, config, sets)


@app.command()
def status(config: ConfigFile = None, sets: Sets = None) -> None:
    """Show gateways, workers, queues, credits and instances as they are now."""
    from headrace.status import print_status

    _run(print_status, config, sets)


@app.command()
def usage(
    *,
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="Like 2026-01-31; else the last day.")] = "",
    last: Annotated[str, typer.Option("--to", metavar="DAY", help="Included; else today, UTC.")] = "",
    group_by: Annotated[str, typer.Option(help="Some of day,tenant,key,model; else all.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    url: Url = None,
    key: ApiKey = "",
    config: ConfigFile = None,
) -> None:
    """Show who used what: requests, rows, bytes and time in the model."""
    from headrace.usage import UsageRefused, print_usage, read_usage

    try:
        print_usage(read_usage(url or _http_url(config), key, first, last, group_by), as_csv=as_csv)
    except UsageRefused as e:
        _fail(str(e))


@app.command()
def health(
    role: Annotated[Literal["gateway", "worker"], typer.Argument(help="Whose health: that of this host's.")],
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Exit with 0 if this host's gateway or workers serve: for health checks of containers."""
    import asyncio

    from headrace.health import gateway_health, worker_health

    look = gateway_health if role == "gateway" else worker_health
    is_healthy, text = asyncio.run(look(_load(config, sets, {}).settings))
    typer.echo(text)
    raise typer.Exit(0 if is_healthy else 1)


@app.command()
def doctor(repository: Repository = None, config: ConfigFile = None, sets: Sets = None) -> None:
    """Say in a line each what is wrong on this machine and what to do."""
    from headrace.doctor import diagnose, print_findings

    findings = diagnose(config, sets or [], repository)
    raise typer.Exit(print_findings(findings))


@app.command("nats-config")
def nats_config(config: ConfigFile = None, sets: Sets = None) -> None:
    """Print nats-server's users and permissions, from `gateway.tenants_file` and the broker's passwords."""
    _need("gateway")
    from gateway.identity import IdentityError, load_tenants
    from headrace.nats_config import CannotWrite, users_text

    settings = _load(config, sets, {}).settings
    brokers = [b for b in (settings.gateway.broker, settings.worker.broker) if b.user and b.password_file is not None]
    tenants_file = settings.gateway.tenants_file
    try:
        own = {b.user: b.password_file.read_text().partition("\n")[0].strip() for b in brokers if b.password_file}
        tenants = {} if tenants_file is None else load_tenants(tenants_file)
        clients = {name: t.broker_password_bcrypt for name, t in tenants.items() if t.broker_password_bcrypt}
        typer.echo(users_text(own, clients), nl=False)
    except (IdentityError, CannotWrite, OSError) as e:
        _fail(str(e))


@config_app.command("show")
def config_show(config: ConfigFile = None, sets: Sets = None) -> None:
    """Print every value in force and where it came from."""
    from headrace.tables import print_table

    rows = [(key, _plain(value), origin) for key, value, origin in _load(config, sets, {}).rows()]
    print_table("", ("key", "value", "from"), rows)


@config_app.command("check")
def config_check(file: Annotated[Path, typer.Argument(help="The file to check.")]) -> None:
    """Check a configuration file without starting anything."""
    from headrace.config.given import ConfigError
    from headrace.config.load import check_file

    try:
        effective = check_file(file)
    except ConfigError as e:
        _fail(str(e))
    given = sum(origin != "default" for _, _, origin in effective.rows())
    typer.echo(f"{file}: good, {given} values given")


def _load(config: Path | None, sets: list[str] | None, flags: dict[str, tuple[str, Any]]) -> Effective:
    """Configuration with a command's flags on top; a mistake ends the command with all complaints."""
    from headrace.config.given import ConfigError, Given
    from headrace.config.load import load

    given = [
        Given(tuple(key.split(".")), str(value), flag, is_text=True)
        for key, (flag, value) in flags.items()
        if value is not None
    ]
    try:
        return load(config, sets=sets or (), flags=given)
    except ConfigError as e:
        _fail(str(e))


def _http_url(config: Path | None) -> str:
    """The gateway of the launcher that runs here, else the configured one."""
    from headrace.runfile import read_note

    settings = _load(config, None, {}).settings
    note = read_note(settings.up.data_dir)
    return note.http_url if note else f"http://{settings.gateway.host}:{settings.gateway.http_port}"


def _other_models(config: Path | None, model: str) -> str:
    """The names that would have worked, unless the name is not what was wrong."""
    from headrace.ask import known_models, known_text
    from headrace.status import broker_of

    known = known_models(broker_of(_load(config, None, {}).settings))
    return "" if model in known else known_text(known)


def _run(
    command: Callable[[HeadraceSettings], Coroutine[Any, Any, int]], config: Path | None, sets: list[str] | None
) -> NoReturn:
    import asyncio

    raise typer.Exit(asyncio.run(command(_load(config, sets, {}).settings)))


def _need(*extras: str) -> None:
    """End the command with what to install, if something is missing."""
    from headrace.extras import complaint

    wrong = complaint(*extras)
    if wrong:
        _fail(wrong)


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)


def _plain(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
