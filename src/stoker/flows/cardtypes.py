"""Card classes that are always there: those of Metaflow's that people name, and those that tests of flows use.

The types "default" and "blank" are no classes: they are the task's own page (`flows.cards`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
import time
from typing import Any, Callable, Mapping

from stoker.core.cards import CardComponent
from stoker.flows.cards import MetaflowCard


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
        except Exception as error:
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
