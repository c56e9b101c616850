"""What a builder of images is: one value with its settings and, for builders elsewhere, what they are told.

The engine of this machine builds by itself (`images.build`). Every other builder is told by documents and commands,
which `render` makes of a `BuildOrder`; nothing is sent here.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest

DOCKERFILE: Final = "Dockerfile"
"""The name of the Dockerfile in the context."""
CONTEXT: Final = "context.tar.gz"
"""The name of the packed context, which has the Dockerfile in it."""
RENDERED_OPTIONS: Final = frozenset({"build_args", "buildargs", "labels", "target", "nocache", "pull"})
"""Options of `build_config` that every builder takes; `pull` is what builders without images of their own do anyway."""


@attrs.frozen(kw_only=True)
class BuildOrder:
    """One image that is to be built and pushed elsewhere."""

    tag: str
    """The full name under which it is pushed."""
    name: str
    """A name for the build: letters, digits and hyphens, of at most 40 characters."""
    platform: str
    """Such as "linux/amd64"."""
    arguments: Mapping[str, str] = attrs.field(factory=dict)
    """The values of the Dockerfile's ARGs."""
    target: str = ""
    """The stage to build; empty for the last one."""
    cache: bool = True
    """Whether layers of earlier builds are used."""


@attrs.frozen(kw_only=True)
class RenderedBuild:
    """What a builder elsewhere is told."""

    files: Mapping[str, Any]
    """File name → its document, which is JSON, or its text."""
    commands: tuple[str, ...]
    """The commands that upload the context and start the build, in their order, in the folder of the files."""


@attrs.frozen
class NoBuilderSettings:
    """The settings of a builder that has none."""


@attrs.frozen(kw_only=True)
class ImageBuilder:
    """One kind of builder, complete."""

    name: str
    """The flavor: what `image_builder = "…"` in stoker.toml names."""
    title: str
    """What it is called in texts."""
    settings: type[attrs.AttrsInstance] = NoBuilderSettings
    """The attrs class of its settings in the stack; each converter raises `SettingsError` for what it cannot take."""
    render: Callable[[BuildOrder, Any], RenderedBuild] | None = None
    """What it is told to build an image, by its settings; pure. None for the engine of this machine."""
    mounts: bool = False
    """Whether it understands `RUN --mount`: caches of installers and secrets while building."""


@attrs.frozen(kw_only=True)
class BuilderChoice:
    """The builder of a stack, with its settings."""

    flavor: str
    """The name of an `ImageBuilder`."""
    settings: Any
    """An object of its settings' class."""


def choose(value: Any, load: Callable[[str], ImageBuilder]) -> BuilderChoice:
    """The builder of a text or a table in stoker.toml; `SettingsError` says what is wrong with it."""
    options = {"flavor": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    flavor = options.pop("flavor", None)
    if not isinstance(flavor, str) or not flavor:
        raise SettingsError(f"image_builder = {value!r} names no flavor", fix='write image_builder = "local"')
    builder = load(flavor)
    fields = [field.name for field in attrs.fields(builder.settings)]
    for name in options:
        if name not in fields:
            raise SettingsError(f"image_builder: {builder.title} has no '{name}'{nearest(name, fields)}")
    missing = [field.name for field in attrs.fields(builder.settings) if field.default is attrs.NOTHING]
    lacking = [name for name in missing if name not in options]
    if lacking:
        fix = f'write image_builder = {{flavor = "{flavor}", {lacking[0]} = "…"}}'
        raise SettingsError(f"image_builder: {builder.title} needs {', '.join(lacking)}", fix=fix)
    return BuilderChoice(flavor=flavor, settings=builder.settings(**options))


def parse_word(value: Any) -> str:
    """A text without blanks and quotes, as names, addresses and paths are."""
    if not isinstance(value, str) or any(mark.isspace() or mark in "'\"\\`$;" for mark in value):
        raise SettingsError(f"image_builder: {value!r} is not a name, an address or a path")
    return value


def check_options(options: Mapping[str, Any], builder: ImageBuilder) -> None:
    """Refuse options of `build_config` that a builder elsewhere cannot honour."""
    lost = sorted(name for name, value in options.items() if value and name not in RENDERED_OPTIONS)
    if lost:
        raise SettingsError(
            f"{builder.title} cannot be told build_config's option '{lost[0]}'",
            fix='take it back, or let this machine build: image_builder = "local"',
        )


LOCAL: Final = ImageBuilder(name="local", title="the container engine of this machine", mounts=True)
