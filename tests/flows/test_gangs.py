"""`num_parallel`: nodes that run one step together, each with its own artifacts and lines."""

from __future__ import annotations

from typing import Any

GANG = """
import os
import sys
import time
from stoker.flow import FlowSpec, Parameter, catch, current, resources, step, timeout

class Gang(FlowSpec):
    nodes = Parameter("nodes", default=3)
    bad = Parameter("bad", default=-1)

    @step
    def start(self):
        self.shared = "same"
        assert current.parallel.num_nodes == 1
        self.next(self.train, num_parallel=self.nodes)

    @resources(cpu=2)
    @step
    def train(self):
        place = current.parallel
        assert place.num_nodes == self.nodes, place
        assert place.control_task_id == "train[0]" and current.task_id == f"train[{place.node_index}]"
        print("node", place.node_index, "at", place.main_ip)
        if place.node_index == self.bad:
            raise ValueError("bad node")
        if self.bad >= 0:
            time.sleep(600)
        self.rank = place.node_index
        if self.rank:
            self.not_first = True
        self.next(self.join)

    @step
    def join(self, inputs):
        self.ranks = [found.rank for found in inputs]
        self.merge_artifacts(inputs, exclude=["rank"])
        self.next(self.end)

    @step
    def end(self):
        assert (self.shared, self.ranks) == ("same", list(range(self.nodes)))
        assert self.nodes == 1 or self.not_first

if __name__ == "__main__":
    Gang()
"""


def test_every_node_has_its_artifacts_and_lines(project: Any) -> None:
    project.write({"gang.py": GANG}).run("gang.py", "run")
    run = project.client().runs()[0]
    train = run.steps["train"]
    assert train.outputs["rank"].load() == [0, 1, 2]
    assert train.outputs["not_first"].load() == [None, True, True]
    assert [line.text.split()[1] for line in train.logs(rank=1)] == ["1"]
    project.run("gang.py", "run", "--nodes", "1")
    # What is finished is not done again, and still has each node's artifacts.
    project.run("gang.py", "resume", "join")


def test_the_first_node_that_fails_ends_the_others(project: Any) -> None:
    finished = project.write({"gang.py": GANG}).run("gang.py", "run", "--bad", "2", code=1)
    assert "bad node" in finished.stderr
    assert project.client().runs()[0].steps["train"].failure.type == "ValueError"


CAUGHT = """
import ctypes
from stoker.flow import FlowSpec, catch, current, gpu_profile, resources, retry, step, timeout

class Caught(FlowSpec):
    @step
    def start(self):
        self.before = 1
        self.items = [1, 2]
        self.next(self.each, foreach="items")

    @step
    def each(self):
        self.next(self.train, num_parallel=2)

    @catch(var="failure")
    @timeout(seconds=10)
    @step
    def train(self):
        if current.parallel.node_index and self.foreach_stack()[0][2] == 2:
            ctypes.PyDLL(None).sleep(600)
        self.z = (self.foreach_stack()[0][2], current.parallel.node_index)
        self.next(self.join)

    @gpu_profile
    @resources(gpu=1)
    @step
    def join(self, inputs):
        self.causes = [found.failure and found.failure.cause for found in inputs]
        self.z = [found.z for found in inputs if "z" in found]
        assert all(found.before == 1 for found in inputs)
        self.next(self.all)

    @step
    def all(self, inputs):
        self.causes = [found.causes for found in inputs]
        self.z = [found.z for found in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Caught()
"""


def test_gangs_inside_a_foreach_and_a_timeout_over_one(project: Any) -> None:
    project.write({"caught.py": CAUGHT}).run("caught.py", "run")
    run = project.client().runs()[0]
    end = run.steps["end"].outputs
    assert end["causes"].load() == [[None, None], ["timed-out", "timed-out"]]
    assert end["z"].load() == [[(1, 0), (1, 1)], []]
    assert run.steps["train[0]"].outputs["z"].load() == [(1, 0), (1, 1)]
    project.run("caught.py", "resume", "all")
    again = project.client().runs()[0].steps["end"].outputs
    assert again["causes"].digest == end["causes"].digest and again["z"].digest == end["z"].digest


def test_nodes_beside_the_first_may_return_before_they_go_on(project: Any) -> None:
    project.write(
        {
            "early.py": """
            from stoker.flow import FlowSpec, Task, current, step

            class Early(FlowSpec):
                @step
                def start(self):
                    self.next(self.node, num_parallel=2)

                @step
                def node(self):
                    self.place = current.parallel.node_index
                    assert Task(current.pathspec).id == current.task_id
                    if self.place:
                        return
                    self.next(self.join)

                @step
                def join(self, inputs):
                    self.places = [node.place for node in inputs]
                    self.next(self.end)

                @step
                def end(self):
                    pass

            if __name__ == "__main__":
                Early()
            """
        }
    ).run("early.py", "run")
    assert project.client().runs()[0].steps["end"].outputs["places"].load() == [0, 1]
    text = (project.folder / "early.py").read_text(encoding="utf-8").replace("if self.place:", "if not self.place:")
    project.write({"early.py": text})
    assert "ended without self.next" in project.run("early.py", "run", code=1).stderr
