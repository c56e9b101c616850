"""Flows of the shape of Metaflow's documentation and tutorials, and the one that this form was asked for with."""

from __future__ import annotations

from typing import Any

MOVIES = """title,year,genres,gross
Anna,1999,Drama|Comedy,10
Bert,2001,Comedy,30
Cleo,2001,Drama,20
Dora,2010,Action|Drama,50
Emil,2010,Comedy,60
"""

GPU = """
from stoker.flow import FlowSpec, step, resources

class GPUFlow(FlowSpec):

    @resources(memory=32000, cpu=4, gpu=1)
    @step
    def start(self):
        from my_script import my_gpu_routine
        my_gpu_routine()
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == '__main__':
    GPUFlow()
"""


def test_the_flow_with_a_gpu_runs_everywhere(project: Any) -> None:
    project.write({"gpu.py": GPU, "my_script.py": "def my_gpu_routine():\n    print('computing')\n"})
    said = project.run("gpu.py", "run").stderr
    assert "cpu-fallback" in said and "32GB" in said and "computing" in said
    run = project.client().runs()[0]
    assert run.steps["start"].receipt.verdict == "cpu-fallback"
    said = project.run("gpu.py", "run", "--simulate", "1xH100-80GB").stderr
    assert project.client().runs()[0].steps["start"].receipt.devices[0].model == "H100", said


STATISTICS = """
import csv
import io
from statistics import median
from stoker.flow import FlowSpec, IncludeFile, catch, retry, step

def script_path(name):
    import os
    return os.path.join(os.path.dirname(os.path.realpath(__file__)), name)

class MovieStatsFlow(FlowSpec):
    \"\"\"Computes statistics of each genre, side by side.\"\"\"

    movie_data = IncludeFile("movie_data", help="a file of movies", default=script_path("movies.csv"))

    @step
    def start(self):
        self.rows = list(csv.DictReader(io.StringIO(self.movie_data)))
        self.genres = sorted({genre for row in self.rows for genre in row["genres"].split("|")})
        self.next(self.compute_statistics, foreach="genres")

    @catch(var="compute_failed")
    @retry(times=1)
    @step
    def compute_statistics(self):
        self.genre = self.input
        if self.genre == "Action":
            raise RuntimeError("no action")
        gross = [int(row["gross"]) for row in self.rows if self.genre in row["genres"]]
        self.median = median(gross)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.genre_stats = {
            one.genre.lower(): one.median for one in inputs if not one.compute_failed
        }
        self.failed = [one.input for one in inputs if one.compute_failed]
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    MovieStatsFlow()
"""

PLAYLIST = """
from stoker.flow import Flow, FlowSpec, Parameter, step

class PlayListFlow(FlowSpec):
    genre = Parameter("genre", help="filter", default="Comedy")
    recommendations = Parameter("recommendations", default=2)

    @step
    def start(self):
        run = Flow("MovieStatsFlow").latest_successful_run
        self.rows = run["start"].task.data.rows
        self.stats = run.data.genre_stats
        self.next(self.bonus_movie, self.genre_movies)

    @step
    def bonus_movie(self):
        self.bonus = next(row["title"] for row in self.rows if self.genre not in row["genres"])
        self.next(self.join)

    @step
    def genre_movies(self):
        mine = [row for row in self.rows if self.genre in row["genres"]]
        self.movies = [row["title"] for row in sorted(mine, key=lambda row: -int(row["gross"]))]
        self.next(self.join)

    @step
    def join(self, inputs):
        self.playlist = inputs.genre_movies.movies[: self.recommendations]
        self.bonus = inputs.bonus_movie.bonus
        self.merge_artifacts(inputs, include=["stats"])
        self.next(self.end)

    @step
    def end(self):
        for place, title in enumerate(self.playlist, 1):
            print(f"Pick {place}: {title}")

if __name__ == "__main__":
    PlayListFlow()
"""


def test_statistics_and_a_playlist_from_them(project: Any) -> None:
    project.write({"stats.py": STATISTICS, "playlist.py": PLAYLIST, "movies.csv": MOVIES})
    project.run("stats.py", "run")
    stats = project.client().runs()[0].steps["end"].outputs
    assert stats["genre_stats"].load() == {"comedy": 30, "drama": 20}
    assert stats["failed"].load() == ["Action"]
    project.run("playlist.py", "--no-pylint", "run", "--genre", "Drama", "--recommendations=1")
    run = project.client().runs()[0]
    assert [line.text for line in run.steps["end"].logs()] == ["Pick 1: Dora"]
    assert run.steps["end"].outputs["bonus"].load() == "Bert"
    assert run.steps["end"].outputs["stats"].digest == stats["genre_stats"].digest


ARRAYS = """
import numpy as np
from stoker.flow import FlowSpec, step

class Arrays(FlowSpec):
    @step
    def start(self):
        self.big = np.arange(200_000, dtype=np.float64)
        self.items = [np.full(10, value) for value in range(3)]
        self.next(self.a, foreach="items")

    @step
    def a(self):
        self.mean = float(self.input.mean()) + float(self.big[self.index])
        if self.index == 1:
            self.big[0] = 7.0
        self.next(self.join)

    @step
    def join(self, inputs):
        self.means = [one.mean for one in inputs]
        self.first = [float(one.big[0]) for one in inputs]
        self.big = inputs[0].big
        self.next(self.end)

    @step
    def end(self):
        assert self.big[0] == 0.0

if __name__ == "__main__":
    Arrays()
"""


def test_arrays_are_kept_once_and_changes_stay_with_who_made_them(project: Any) -> None:
    project.write({"arrays.py": ARRAYS}).run("arrays.py", "run")
    run = project.client().runs()[0]
    assert run.steps["end"].outputs["means"].load() == [0.0, 2.0, 4.0]
    assert run.steps["end"].outputs["first"].load() == [0.0, 7.0, 0.0]
    digests = {run.steps[key].outputs["big"].digest for key in ("start", "a[0]", "a[2]", "join", "end")}
    assert len(digests) == 1 and run.steps["a[1]"].outputs["big"].digest not in digests
