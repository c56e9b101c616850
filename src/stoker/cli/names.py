"""`stoker artifacts`, `stoker models`, `stoker pull model:NAME DIR`: what has a name beyond its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

import click

from stoker.cli.output import json_option, paint, print_json, stack_option, table
from stoker.cli.runs import artifacts_command, preview_lines
from stoker.client import ArtifactVersion, Client, ModelVersion
from stoker.client.exchange import export_model, import_model
from stoker.client.names import ModelDiff, model_diff
from stoker.core.errors import UsageError
from stoker.core.registry import LATEST, MODEL, parse_reference
from stoker.core.words import memory_text, number_text
from stoker.report.streams import echo, say

_SHOWN: Final = 20
"""Versions, users and promotions that `show` prints."""


class _Named(click.Group):
    """A group whose first word may be none of its commands: then it is what the command "of" is given."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["of", *args]
        return super().resolve_command(ctx, args)


@click.group("artifacts", cls=_Named, invoke_without_command=True)
@click.pass_context
def artifacts(ctx: click.Context) -> None:
    """List and look after named artifacts; with a RUN or a DIGEST, list what a run's steps made, or who made it."""
    if ctx.invoked_subcommand is None:
        ctx.forward(list_artifacts, client=Client(), text="", tag=None, limit=_SHOWN, as_json=False)


artifacts.add_command(artifacts_command, "of")
_limit = click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="How many; 0 is all.")


@artifacts.command("list")
@click.argument("text", default="")
@click.option("--tag", help="Only names with a version that has this tag.")
@_limit
@stack_option
@json_option
def list_artifacts(*, text: str, tag: str | None, limit: int, client: Client, as_json: bool) -> None:
    """List named artifacts, the one that changed last first, or with --tag by name; TEXT is part of a name."""
    found = client.artifacts(text, tag=tag, limit=limit or None)
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    if not found:
        say('no named artifacts: a step\'s return names one, Annotated[…, Artifact("name")]')
        return
    rows = [
        (one.name, str(one.version), one.type, memory_text(one.size), _time(one), ", ".join(one.tags)) for one in found
    ]
    echo(table(("artifact", "version", "type", "size", "made", "tags"), rows, right=("version", "size")))


@artifacts.command("show")
@click.argument("which", metavar="NAME[@VERSION]")
@stack_option
@json_option
def show_artifact(*, which: str, client: Client, as_json: bool) -> None:
    """Show a version of an artifact: what made it and of what, who used it, what it looks like."""
    one = _artifact(client, which)
    inputs = {name: _words_of(made) for name, made in one.inputs.items()}
    uses = [f"{use.run_id}/{use.step}.{use.parameter}" for use in one.users]
    models = [f"{model.name}@{model.version}" for model in one.models]
    if as_json:
        print_json({**one.as_dict(), "inputs": inputs, "users": uses, "models": models})
        return
    made = f"{one.run_id}/{one.step}.{one.output}" if one.run_id else "saved outside of runs"
    facts = {
        "type": f"{one.type}, {memory_text(one.size)}",
        "digest": one.digest,
        "made": f"{_time(one)} by {one.author}, {made}",
        "of": ", ".join(f"{name} = {text}" for name, text in inputs.items()),
        "used by": _first(uses),
        "models": _first(models),
        "tags": ", ".join(one.tags),
        "versions": _first([str(version.version) for version in one.versions]),
    }
    echo("\n".join([paint(f"{one.name}@{one.version}", "1"), *_facts(facts), *_metadata(one.metadata)]))
    lines = preview_lines(one.preview())
    if lines:
        echo("\n".join(["", *lines]))


@artifacts.command("tag")
@click.argument("which", metavar="NAME[@VERSION]")
@click.argument("tags", nargs=-1, required=True)
@click.option("--move", is_flag=True, help="No other version keeps the tags.")
@click.option("--remove", is_flag=True, help="Remove them.")
@stack_option
def tag_artifact(*, which: str, tags: Sequence[str], move: bool, remove: bool, client: Client) -> None:
    """Tag a version of an artifact."""
    _tag(_artifact(client, which), tags, move=move, remove=remove)


@artifacts.command("rm")
@click.argument("which", metavar="NAME@VERSION")
@stack_option
def remove_artifact(*, which: str, client: Client) -> None:
    """Remove a version of an artifact; its bytes stay until `stoker gc`."""
    one = _artifact(client, _with_version(which))
    one.delete()
    say(f"removed {one.name}@{one.version}")


@click.group("models")
def models() -> None:
    """Look after models: their versions, stages and artifacts."""


@models.command("list")
@click.argument("text", default="")
@click.option("--stage", help="Only models with a version in this stage, and that version.")
@_limit
@stack_option
@json_option
def list_models(*, text: str, stage: str | None, limit: int, client: Client, as_json: bool) -> None:
    """List models, the one that changed last first; TEXT is part of a name."""
    found = client.models(text, stage=stage, limit=limit or None)
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    if not found:
        say('no models: @pipeline(model="name") makes a version of one')
        return
    rows = [(one.name, _version_text(one), one.stage, _time(one), _numbers(one.metrics)) for one in found]
    echo(table(("model", "version", "stage", "made", "metrics"), rows))


@models.command("show")
@click.argument("which", metavar="NAME[@VERSION]")
@stack_option
@json_option
def show_model(*, which: str, client: Client, as_json: bool) -> None:
    """Show a version of a model: its stage, metrics and artifacts, and how its model got here."""
    one = _model(client, which)
    versions, history, rules = one.versions, one.history, one.rules
    if as_json:
        documents = [
            {"version": row.version, "before": row.before, "stage": row.stage, "displaced": row.displaced}
            | {"time": row.time, "author": row.author, "why": row.reason, "run": row.run_id}
            for row in history
        ]
        print_json({**one.as_dict(), "history": documents, "rules": rules})
        return
    facts = {
        "stage": one.stage or "none",
        "made": f"{_time(one)} by {one.author}" + (f", run {one.run_id}" if one.run_id else ""),
        "description": one.description,
        "tags": ", ".join(one.tags),
        "runs": _first(one.run_ids),
        "metrics": _numbers(one.metrics),
    }
    lines = [paint(f"{one.name}@{_version_text(one)}", "1"), *_facts(facts), *_metadata(one.metadata)]
    parts = [(part.name, str(part.version), part.type, memory_text(part.size)) for part in one.artifacts.values()]
    if parts:
        lines += ["", table(("artifact", "version", "type", "size"), parts, right=("version", "size"))]
    rows = [(_version_text(each), each.stage, _time(each), _numbers(each.metrics)) for each in versions[:_SHOWN]]
    lines += ["", table(("version", "stage", "made", "metrics"), rows)]
    lines += [f"  rule for {stage}: {rule}" for stage, texts in rules.items() for rule in texts]
    for row in history[:_SHOWN]:
        why = f": {row.reason}" if row.reason else ""
        displaced = f", in place of {row.displaced}" if row.displaced is not None else ""
        lines.append(f"  {row.version} became {row.stage or 'none'}{displaced}, by {row.author}{why}")
    echo("\n".join(lines))


@models.command("promote")
@click.argument("which", metavar="NAME@VERSION")
@click.argument("stage")
@click.option("--why", default="", help="The reason, which the history keeps.")
@click.option("--force", is_flag=True, help="Promote it although a rule of the stage is not fulfilled.")
@stack_option
def promote(*, which: str, stage: str, why: str, force: bool, client: Client) -> None:
    """Give a version a stage: staging, production, archived, or one of your own. The one that had it is archived."""
    one = _model(client, _with_version(which))
    one.promote(stage, why=why, force=force)
    say(f"{one.name}@{one.version} is {stage}")


@models.command("rule")
@click.argument("name")
@click.argument("stage")
@click.argument("rules", nargs=-1)
@stack_option
def rule(*, name: str, stage: str, rules: Sequence[str], client: Client) -> None:
    """Set what versions must fulfil before they get a stage; without RULES nothing.

    A rule is "METRIC >= production", "METRIC >= 0.9", "receipt" or "check MODULE:FUNCTION".
    """
    client.model(name).set_rules(stage, rules)
    say(f"{name}: {stage} needs {'; '.join(rules) or 'nothing'}")


@models.command("tag")
@click.argument("which", metavar="NAME[@VERSION]")
@click.argument("tags", nargs=-1, required=True)
@click.option("--move", is_flag=True, help="No other version keeps the tags.")
@click.option("--remove", is_flag=True, help="Remove them.")
@stack_option
def tag_model(*, which: str, tags: Sequence[str], move: bool, remove: bool, client: Client) -> None:
    """Tag a version of a model."""
    _tag(_model(client, which), tags, move=move, remove=remove)


@models.command("diff")
@click.argument("left", metavar="NAME@VERSION")
@click.argument("right", metavar="[NAME@]VERSION")
@stack_option
@json_option
def diff(*, left: str, right: str, client: Client, as_json: bool) -> None:
    """Compare two versions: metrics, metadata, artifacts, and the parameters and the code of their runs."""
    first = _model(client, _with_version(left))
    second = _model(client, right if "@" in right else f"{first.name}@{right}")
    found = model_diff(client.store, first, second)
    if as_json:
        print_json(found.as_dict())
        return
    rows = list(_difference_rows(found))
    if not rows:
        say("no differences")
        return
    heads = ("", "", f"{first.name}@{first.version}", f"{second.name}@{second.version}")
    echo(table(heads, rows))


@models.command("rm")
@click.argument("which", metavar="NAME@VERSION")
@stack_option
def remove_model(*, which: str, client: Client) -> None:
    """Remove a version of a model, but not its artifacts; not while it has a stage."""
    one = _model(client, _with_version(which))
    one.delete()
    say(f"removed {one.name}@{one.version}")


@models.command("export")
@click.argument("which", metavar="NAME[@VERSION]")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@stack_option
def export(*, which: str, file: Path, client: Client) -> None:
    """Write a version with its artifacts and its lineage into one file, for another store."""
    one = _model(client, which)
    say(f"{file}: {one.name}@{one.version}, {memory_text(export_model(client.store, one, file))}")


@models.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default="", help="The model's name here, if it is to be another one.")
@stack_option
def import_command(*, file: Path, name: str, client: Client) -> None:
    """Take a version of a model from a file; it becomes the next version of its name here, in no stage."""
    one = import_model(client.store, file, name=name)
    say(f"{one.name}@{one.version}: {', '.join(one.artifacts) or 'no artifacts'}")


def _artifact(client: Client, which: str) -> ArtifactVersion:
    name, version = parse_reference(which)
    return client.artifact(name, version)


def _model(client: Client, which: str) -> ModelVersion:
    return client.model(*parse_reference(which, MODEL))


def _with_version(which: str) -> str:
    if "@" not in which:
        raise UsageError(f"'{which}' names no version", fix=f"write {which}@VERSION, such as {which}@{LATEST}")
    return which


def _tag(one: ArtifactVersion | ModelVersion, tags: Sequence[str], *, move: bool, remove: bool) -> None:
    if remove:
        one.remove_tags(*tags)
    else:
        one.add_tags(*tags, exclusive=move)
    say(f"{one.name}@{one.version}: {', '.join(one.tags) or 'no tags'}")


def _difference_rows(found: ModelDiff) -> Iterator[tuple[str, ...]]:
    """(what, name, left, right) of everything that differs."""
    for what, pairs in (("metric", found.metrics), ("metadata", found.metadata), ("parameter", found.parameters)):
        for name, pair in pairs.items():
            yield (what, name, *("" if one is None else str(one) for one in pair))
    for name, parts in found.artifacts.items():
        yield ("artifact", name, *("" if one is None else f"{one.version} ({one.digest[:12]})" for one in parts))
    for step in found.steps:
        for change in step.changes:
            yield (change.kind, f"{step.step} {change.name}".strip(), change.before, change.after)
    for key, reason in found.unknown.items():
        yield ("not compared", key, reason, "")


def _words_of(made: Any) -> str:
    if isinstance(made, ArtifactVersion):
        return f"{made.name}@{made.version}"
    return f"{made.run_id}/{made.step}.{made.name}"


def _version_text(one: ModelVersion) -> str:
    return f"{one.version} ({one.label})" if one.label else str(one.version)


def _time(one: ArtifactVersion | ModelVersion) -> str:
    return one.created.strftime("%Y-%m-%d %H:%M:%S")


def _numbers(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number_text(value)}" for name, value in sorted(metrics.items()))


def _first(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (f", … ({len(texts)})" if len(texts) > _SHOWN else "")


def _facts(facts: Mapping[str, str]) -> list[str]:
    return [f"  {name:<12} {text}" for name, text in facts.items() if text]


def _metadata(metadata: Mapping[str, Any]) -> list[str]:
    return (
        ["", "metadata", *(f"  {name} = {json.dumps(value)}" for name, value in metadata.items())] if metadata else []
    )
