"""A notebook: steps and pipelines are defined in cells, run from cells, and looked at in cells."""

from __future__ import annotations

import html as html_module
import re
import warnings
from typing import Any

import pytest

from stoker.report.notebook import progress_html
from stoker.report.progress import Progress

CELLS = [
    """
import os
from typing import Annotated
import numpy as np
from stoker import Client, pipeline, step

OFFSET = 1

class Model:
    def __init__(self, weights):
        self.weights = weights
""",
    """
@step
def load(size: int) -> Annotated[np.ndarray, "data"]:
    print("loading", size)
    return np.arange(size)

@step
def train(data: np.ndarray) -> Annotated[Model, "model"]:
    return Model(data.sum() + OFFSET)

@step
def where(model: Model) -> int:
    return os.getpid()

@step
def broken(x: int) -> int:
    raise ValueError("a cell broke")

@pipeline
def training(size: int = 5):
    where(train(load(size)))

@pipeline
def failing():
    broken(1)

@pipeline(dynamic=True)
def growing():
    data = load(3)
    assert data.tolist() == [0, 1, 2]
    train(data)
""",
    "run = training()",
    """
model = run.steps["train"].outputs["model"].load()
assert type(model) is Model, type(model)
print("weights", model.weights, "other process", run.steps["where"].load() != os.getpid())
""",
    "run",
    'run.steps["load"]',
    'run.steps["load"].outputs["data"]',
    "training(); print([step.status for step in Client().run('latest').steps.values()])",
    "OFFSET = 2",
    "print([(step.status, step.name) for step in training().steps.values()])",
    """
@step
def train(data: np.ndarray) -> Annotated[Model, "model"]:
    return Model(-1)

print("redefined", training().steps["train"].output.load().weights)
""",
    """
try:
    failing()
except Exception as error:
    print(type(error).__name__, error.exit_code, error.run.steps["broken"].message)
""",
    "print('grown', growing().status)",
    "from stoker import run_report; run_report(run, height=400)",
    "run_report()",
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the notebook's own packages warn about is not ours to mend
        import nbclient
        import nbformat

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text.strip()) for text in CELLS])
        folder = tmp_path_factory.mktemp("notebook")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_HOME", str(folder / "home"))
            patch.setenv("IPYTHONDIR", str(folder / "ipython"))
            patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
            client = nbclient.NotebookClient(
                notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
            )
            client.execute()
    return [cell.outputs for cell in notebook.cells]


def _printed(outputs: Any) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


def _html(outputs: Any) -> str:
    return "".join(output.data["text/html"] for output in outputs if output.output_type == "execute_result")


def test_steps_of_cells_run_in_other_processes_and_their_results_load(cells: Any) -> None:
    assert _printed(cells[3]) == "weights 11 other process True\n"


def test_the_run_is_shown_where_it_is_called(cells: Any) -> None:
    text = "".join(output.text for output in cells[2] if output.output_type == "stream")
    assert "loading 5" in text and "training succeeded" not in text, "stderr looks like an error there"


def test_a_run_is_a_table_that_is_drawn_anew(cells: Any) -> None:
    (table,) = [output for output in cells[2] if output.output_type == "display_data"]
    html, words = table.data["text/html"], table.data["text/plain"]
    # The cell was shown with steps that come later, and has had updates since.
    assert all(f">{name}<" in html for name in ("load", "train", "where")) and "succeeded</span>" in html
    assert "waits for" not in html and html.count("✓") == 3
    assert words.startswith("training ") and ": 3/3 steps" in words and "look: stoker show " in words
    assert ">look: stoker show " in html and "Client().run(" in html
    assert "load succeeded" not in "".join(one.text for one in cells[2] if one.output_type == "stream")
    (failure,) = [output for output in cells[11] if output.output_type == "display_data"]
    assert "a cell broke" in failure.data["text/html"] and "failed</span>" in failure.data["text/html"]


def test_a_report_is_shown_in_a_frame_that_runs_nothing(cells: Any) -> None:
    frame = _html(cells[13])
    assert frame.startswith('<iframe sandbox="" ') and "height:400px" in frame
    page = html_module.unescape(re.findall(r'srcdoc="([^"]*)"', frame)[0])
    assert page.lower().startswith("<!doctype html") and "training" in page and "train" in page
    assert "growing" in _html(cells[14]), "without a run it is the newest one"


def test_the_table_counts_what_has_no_room_and_escapes_what_steps_write() -> None:
    state = Progress(live=True)
    state.run, state.pipeline = "1q", "<b>p</b>"
    for number in range(100):
        state.change(f"s{number}", "running" if number < 2 else "succeeded", {"seconds": 1.0})
    state.rows["s0"].complaint = "<script>alert(1)</script>"
    html = progress_html(state, 10.0)
    assert html.count("<tr>") <= 61 and "… and 4" in html and "<script" not in html and "<b>p" not in html
    assert ">s0<" in html and "&lt;script&gt;" in html


def test_runs_steps_and_outputs_show_themselves(cells: Any) -> None:
    run, step, output = (_html(cells[index]) for index in (4, 5, 6))
    assert "<table" in run and "training" in run and all(name in run for name in ("load", "train", "where"))
    assert "<table" in step and "succeeded" in step
    assert "numpy.ndarray" in output


def test_a_cell_that_changes_changes_what_runs(cells: Any) -> None:
    assert _printed(cells[7]) == "['cached', 'cached', 'cached']\n"
    # The constant is part of the code that `train` reaches; `load` does not reach it.
    assert _printed(cells[9]) == "[('cached', 'load'), ('succeeded', 'train'), ('succeeded', 'where')]\n"
    assert _printed(cells[10]) == "redefined -1\n"


def test_a_failure_is_an_exception_with_the_run(cells: Any) -> None:
    assert _printed(cells[11]) == "RunFailed 1 a cell broke\n"


def test_a_dynamic_pipeline_runs_from_a_cell(cells: Any) -> None:
    assert "grown succeeded" in _printed(cells[12])
