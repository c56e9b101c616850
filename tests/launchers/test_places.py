"""A rank's place, from the variables that each launcher sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import SettingsError
from stoker.launchers.base import Node, Place
from stoker.launchers.registry import LAUNCHERS, launcher_named, place_of

FIFTH = Place(rank=5, local_rank=1, world_size=8, local_world_size=4, node=1)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}, FIFTH),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "CROSS_RANK": "1"}, FIFTH),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            FIFTH,
        ),
        (
            {
                "MV2_COMM_WORLD_RANK": "5",
                "MV2_COMM_WORLD_SIZE": "8",
                "MV2_COMM_WORLD_LOCAL_RANK": "1",
                "MV2_COMM_WORLD_LOCAL_SIZE": "4",
            },
            FIFTH,
        ),
        ({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}, FIFTH),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_NODEID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            FIFTH,
        ),
        (
            {
                "SLURM_PROCID": "6",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
            },
            Place(rank=6, local_rank=0, world_size=7, local_world_size=1, node=3),
        ),
        # torchrun inside of an allocation: torch's own count.
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        # A batch script is in no step of srun's.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place()),
        ({"RANK": "3"}, Place()),
        ({"RANK": "3", "WORLD_SIZE": "2"}, Place()),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Place(rank=1, local_rank=1, world_size=3, local_world_size=3, node=0)),
    ],
)
def test_places(environment: dict[str, str], place: Place | None) -> None:
    expected = place or Place(rank=1, local_rank=1, world_size=2, local_world_size=2, node=0)
    assert place_of(environment) == expected
    assert place_of(environment).is_main is (expected.rank == 0)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=4), st.data())
def test_every_text_of_slurms_tasks_has_its_counts(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
    counts = [count for count, times in parts for _ in range(times)]
    node = data.draw(st.integers(0, len(counts) - 1))
    environment = {
        "SLURM_PROCID": str(sum(counts[:node])),
        "SLURM_STEP_NUM_TASKS": str(sum(counts)),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": text,
    }
    assert place_of(environment).local_world_size == counts[node]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "1", "WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK='-1'"),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, "RANK='٣'"),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2(y1)"},
            "SLURM_STEP_TASKS_PER_NODE='2(y1)'",
        ),
    ],
)
def test_a_place_that_is_not_understood_is_not_that_of_the_main_rank(environment: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match="the place of this rank is not known") as error:
        place_of(environment)
    assert name in error.value.message and "leave" in error.value.fix


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_jax_finds_the_place_that_it_was_given(nodes: int, processes: int, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    local = data.draw(st.integers(0, processes - 1))
    made = launcher_named("jax")(("python",), Node(rank=node, nodes=nodes, processes=processes), {})
    assert place_of({**made.environment, **made.ranks[local]}) == Place(
        rank=node * processes + local,
        local_rank=local,
        world_size=nodes * processes,
        local_world_size=processes,
        node=node,
    )


def test_every_row_names_rank_and_size() -> None:
    assert all(names.rank and names.world_size for _, one in LAUNCHERS.parts() for names in one.variables)
