"""Classes of cards: their base, how one is found by its type, and those that are always there.

The types "default" and "blank" are no classes: they are the task's own page (`flows.cards`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import secrets
import sys
import time
from importlib import metadata
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.cards import Artifact, CardComponent, Table, document_from
from stoker.core.standins import METAFLOW

ENTRY_POINTS: Final = "stoker.cards"
"""The group of entry points whose modules have classes of cards."""


class MetaflowCard:
    """The base of card classes: a subclass has a `type`, which `@card(type=…)` names, and `render`.

    The constructor is given those of `options`, `components`, `graph` and `flow` that it has parameters for: the
    decorator's options, what `render` of the components returned, the steps, and the flow.
    """

    RELOAD_POLICY_NEVER = "never"
    RELOAD_POLICY_ALWAYS = "always"
    RELOAD_POLICY_ONCHANGE = "onchange"
    RELOAD_POLICY_TOKEN = "[METAFLOW_RELOAD_TOKEN]"
    """A text in the HTML in whose place the page's reload token is put."""

    type: str | None = None
    ALLOW_USER_COMPONENTS = False
    """Whether `current.card.append` may mean it."""
    RUNTIME_UPDATABLE = False
    """Whether it is shown while the task runs."""
    RELOAD_POLICY = RELOAD_POLICY_NEVER
    scope = "task"
    runtime_data: Any = None
    """What `refresh` and `render_runtime` are given."""

    def __init__(self, options: Any = None, components: Any = None, graph: Any = None, flow: Any = None) -> None:
        """A subclass keeps what it needs."""

    def render(self, task: Any) -> str:
        """The page as HTML, of the finished task."""
        raise NotImplementedError(f"{type(self).__name__} has no render(task)")

    def render_runtime(self, task: Any, data: Any) -> str:
        """The page as HTML while the task runs."""
        raise NotImplementedError(f"{type(self).__name__} has no render_runtime(task, data)")

    def refresh(self, task: Any, data: Any) -> Any:
        """What the page is given at each refresh, as a JSON value."""
        raise NotImplementedError(f"{type(self).__name__} has no refresh(task, data)")

    def reload_content_token(self, task: Any, data: Any) -> str:
        """A text that changes where the page is to be loaded again, for `RELOAD_POLICY_ONCHANGE`."""
        return "content-token"


def card_class(kind: str) -> type[MetaflowCard] | None:
    """The class of a type of cards: one that the flow has imported, or that of another distribution."""
    found = _known(kind)
    if found is None:
        for entry in metadata.entry_points(group=ENTRY_POINTS):
            with _noting_failures(f"the entry point {entry.name} = {entry.value}"):
                entry.load()
        _load_extensions()
        found = _known(kind)
    return found


def import_failures(kind: str) -> tuple[str, ...]:
    """Which packages with cards could not be imported, and why; nothing where the class of the type is there."""
    return () if card_class(kind) is not None else tuple(_failures.values())


def imports_of(kind: type[MetaflowCard] | None) -> contextlib.AbstractContextManager[None]:
    """For what a class of cards does: one of an extension of Metaflow may import `metaflow` in its methods."""
    is_extension = kind is not None and kind.__module__.startswith(_PREFIX)
    return METAFLOW.served() if is_extension else contextlib.nullcontext()


_PREFIX: Final = "stoker_cards_"
"""Begins the names of the modules that `_load_extensions` makes."""
_failures: dict[str, str] = {}
"""Modules of cards that could not be imported, each with what happened. Their classes are none."""


@contextlib.contextmanager
def _noting_failures(what: str, module: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of a package that is broken, or that wants more of Metaflow
        _failures[module or what] = f"{what}: {type(error).__name__}: {error}"


def _load_extensions() -> None:
    """Load cards that are distributed for Metaflow, `metaflow_extensions/*/plugins/cards`, without the rest of their
    packages, and with `metaflow` as this package."""
    folders: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(sys.path):
        for path in sorted(Path(folder).glob("metaflow_extensions/*/plugins/cards")):
            folders.setdefault(_PREFIX + path.parents[1].name, []).append(path)
    for name, paths in folders.items():
        if name not in sys.modules:
            with METAFLOW.served():
                _load_cards(name, paths)


def _load_cards(name: str, folders: Sequence[Path]) -> None:
    """Import what has the cards of one extension: its package `cards`, its mfextinit modules, or else each package that
    lies in `cards`."""
    whole = next((folder / "__init__.py" for folder in folders if (folder / "__init__.py").is_file()), None)
    loader = None if whole is None else SourceFileLoader(name, str(whole))
    spec = ModuleSpec(name, loader, is_package=True)
    spec.submodule_search_locations = list(map(str, folders))
    sys.modules[name] = importlib.util.module_from_spec(spec)
    if loader is not None:
        with _noting_failures(f"{whole}", name):
            loader.exec_module(sys.modules[name])
        return
    inits = [path for folder in folders for path in sorted(folder.glob("mfextinit_*.py"))]
    for path in inits or [path.parent for folder in folders for path in sorted(folder.glob("[!_.]*/__init__.py"))]:
        with _noting_failures(f"{path}", f"{name}.{path.stem}"):
            importlib.import_module(f"{name}.{path.stem}")


def _known(kind: str) -> type[MetaflowCard] | None:
    pending: list[type[MetaflowCard]] = [MetaflowCard]
    found = None
    while pending:
        one = pending.pop()
        pending += one.__subclasses__()
        if vars(one).get("type") == kind and one.__module__ not in _failures:  # not one that inherits it
            found = one
    return found


class BlankCard(MetaflowCard):
    """A page of its components, as a base for classes of one's own; `@card(type="blank")` makes none of it."""

    type = "blank"
    ALLOW_USER_COMPONENTS = True

    def __init__(self, options: Mapping[str, Any] | None = None, components: Any = (), **words: Any) -> None:
        self._title = str((options or {}).get("title", ""))
        self._components = list(components)

    def render(self, task: Any) -> str:
        """The page."""
        from stoker.report.cards import card_page  # for classes that are based on this one alone

        return card_page([document_from(shown) for shown in self._components], title=self._title, state="succeeded")


class DefaultCard(BlankCard):
    """A page of the task's artifacts, and of its components below them."""

    type = "default"

    def render(self, task: Any) -> str:
        """The page."""
        artifacts = [[artifact.id, Artifact(artifact.data)] for artifact in task]
        self._components.insert(0, Table(artifacts, ["artifact", "value"]).render())
        return super().render(task)


class TaskSpecCard(MetaflowCard):
    """The task's path and nothing else."""

    type = "taskspec_card"

    def render(self, task: Any) -> str:
        """The path."""
        return str(task.pathspec)


def render_safely(render: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of `render`: what cannot be rendered says so instead."""

    @functools.wraps(render)
    def rendered(*args: Any, **kwargs: Any) -> Any:
        try:
            return render(*args, **kwargs)
        except Exception as error:  # of a component of the user's
            return f"cannot be shown: {type(error).__name__}: {error}"

    return rendered


# Of Metaflow's module `test_cards`


class TestStringComponent(CardComponent):
    """A text."""

    REALTIME_UPDATABLE = True
    __test__ = False

    def __init__(self, text: Any) -> None:
        self._text = text

    def render(self) -> str:
        """The text."""
        return str(self._text)

    def update(self, text: Any) -> None:
        """Another text."""
        self._text = text


class TestJSONComponent(CardComponent):
    """A JSON value."""

    REALTIME_UPDATABLE = True
    __test__ = False

    def __init__(self, data: Any) -> None:
        self._data = data

    def render(self) -> Any:
        """The value."""
        return self._data

    def update(self, data: Any) -> None:
        """Another value."""
        self._data = data


class TestPathSpecCard(MetaflowCard):
    """The task's path, and a few letters that differ each time."""

    type = "test_pathspec_card"
    __test__ = False

    def render(self, task: Any) -> str:
        """Path and letters."""
        return f"{task.pathspec} {secrets.token_hex(3)}"


class TestNonEditableCard(MetaflowCard):
    """The components' texts in a row; `current.card.append` never means it."""

    type = "test_non_editable_card"
    separator = "$&#!!@*"
    __test__ = False

    def __init__(self, components: Any = (), **words: Any) -> None:
        self._components = components

    def render(self, task: Any) -> str:
        """The texts."""
        return self.separator.join(map(str, self._components))


class TestEditableCard(TestNonEditableCard):
    """The components' texts in a row."""

    type = "test_editable_card"
    ALLOW_USER_COMPONENTS = True


class TestEditableCard2(TestEditableCard):
    """The same under another name."""

    type = "test_editable_card_2"


class TestMockCard(MetaflowCard):
    """The artifact that the option "key" names."""

    type = "test_mock_card"
    __test__ = False

    def __init__(self, options: Mapping[str, Any] | None = None, **words: Any) -> None:
        self._key = (options or {"key": "dummy_key"})["key"]

    def render(self, task: Any) -> str:
        """The value as text."""
        return str(task[self._key].data)


class TestErrorCard(MetaflowCard):
    """Fails."""

    type = "test_error_card"
    __test__ = False

    def render(self, task: Any) -> str:
        """Nothing."""
        raise RuntimeError("this card always fails")


class TestTimeoutCard(MetaflowCard):
    """Takes as long as the option "timeout" says, in seconds."""

    type = "test_timeout_card"
    __test__ = False

    def __init__(self, options: Mapping[str, Any] | None = None, **words: Any) -> None:
        self._seconds = float((options or {}).get("timeout", 10 if options is not None else 50))

    def render(self, task: Any) -> str:
        """The path, later."""
        time.sleep(self._seconds)
        return str(task.pathspec)


_PAGE = """<html>
<script>
var METAFLOW_RELOAD_TOKEN = "[METAFLOW_RELOAD_TOKEN]"
window.metaflow_card_update = data => {{ document.querySelector("h1").textContent = JSON.stringify(data) }}
</script>
<h1>{path}</h1>
<h1>{content}</h1>
</html>
"""


class TestRefreshCard(MetaflowCard):
    """Shows the data of `refresh`."""

    type = "test_refresh_card"
    ALLOW_USER_COMPONENTS = True
    RUNTIME_UPDATABLE = True
    RELOAD_POLICY = MetaflowCard.RELOAD_POLICY_ALWAYS
    __test__ = False

    def render(self, task: Any) -> str:
        """The data that it was given last."""
        return self.render_runtime(task, self.runtime_data)

    def render_runtime(self, task: Any, data: Any) -> str:
        """The data."""
        return _PAGE.format(path=task.pathspec, content=json.dumps(data["user"]))

    def refresh(self, task: Any, data: Any) -> Any:
        """All that is known."""
        return data


class TestRefreshComponentCard(MetaflowCard):
    """Shows what its components are at each refresh."""

    type = "test_component_refresh_card"
    ALLOW_USER_COMPONENTS = True
    RUNTIME_UPDATABLE = True
    RELOAD_POLICY = MetaflowCard.RELOAD_POLICY_ONCHANGE
    __test__ = False

    def __init__(self, components: Any = (), **words: Any) -> None:
        self._components = components

    def render(self, task: Any) -> str:
        """The components."""
        return _PAGE.format(path=task.pathspec, content=json.dumps(self._components))

    def render_runtime(self, task: Any, data: Any) -> str:
        """The same."""
        return self.render(task)

    def refresh(self, task: Any, data: Any) -> Any:
        """The components by their ids."""
        return data["components"]

    def reload_content_token(self, task: Any, data: Any) -> str:
        """Another one for each content."""
        return "final" if task.finished else f"runtime-{_component_values_to_hash(data['components'])}"


def _component_values_to_hash(components: Mapping[str, Mapping[str, Any]]) -> str:
    texts = ",".join("".join(text) for values in components.values() for text in values.values())
    return hashlib.sha256(texts.encode()).hexdigest()
