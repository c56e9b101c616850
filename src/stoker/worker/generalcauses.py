"""What is said of a failure of which no more than the cause is known: why, and what to do."""

from __future__ import annotations

from typing import Final, Mapping

from stoker.core import status

MORE_MEMORY: Final = (
    "work on smaller pieces or with fewer loader workers, ask for what the step needs "
    "(resources.memory), so that fewer steps share the machine, or use a machine with more memory"
)
_LOOK: Final = "the last lines of `stoker logs` may say more"
GENERAL: Final[Mapping[str, tuple[str, str]]] = {
    status.USER_ERROR: ("the step's code raised an exception", ""),
    status.CRASHED: (
        "the step's process crashed in native code",
        (
            "suspect the extension that the line calls, its version first; after SIGBUS also a full /dev/shm, or a "
            "file that shrank while it was mapped"
        ),
    ),
    status.KILLED: (
        "the step's process was killed from outside",
        f"look who did it: the kernel out of memory (`dmesg`), a platform that takes its place back, a person; {_LOOK}",
    ),
    status.EXITED: ("the step's process left before the step returned", f"return from the step instead; {_LOOK}"),
    status.TIMED_OUT: (
        "the step ran longer than it may",
        "raise the limit that it ran into, its timeout or its platform's, or find out where it waits",
    ),
    status.CANCELLED: ("the step was ended before it was done", ""),
    status.STOPPED: ("its sweep ended the trial, because others do better", ""),
    status.UNSERIALIZABLE: (
        "what the step returned cannot be kept",
        "return data instead of a handle, such as an open file, a lock or a connection; open that where it is used",
    ),
    status.IMPORT_ERROR: (
        "the step's file, or a module that it imports, could not be imported where the step ran",
        "import it there by hand: `python -c 'import …'` shows the same error",
    ),
    status.INPUT_ERROR: (
        "an input of the step could not be loaded",
        "the environment that reads a value must have the packages of the one that wrote it",
    ),
    status.DAMAGED_INPUT: (
        "the bytes of an input are lost or damaged in the artifact store",
        "`stoker resume RUN` computes it again; `stoker store check` finds what else is damaged",
    ),
    status.HOST_OOM: (
        "the kernel ended the step's process by SIGKILL, because memory was used up",
        MORE_MEMORY,
    ),
    status.HANG: (
        "the ranks of the step wait for each other, and no longer get on",
        (
            "look in the stacks for the rank that took another way: a condition on its rank around a collective "
            "operation, or data that ends earlier than others'; a step that is meant to pause sets hang_after"
        ),
    ),
    status.NOT_STARTED: (
        "the launcher waited for something before it had started all ranks",
        (
            "look into what it wrote: `stoker logs RUN STEP --rank launcher`; mostly it waits for an address or a port "
            "that another program has; start_timeout allows a slow start more time"
        ),
    ),
    status.RANK_LEFT: (
        "a rank returned, or left its group, while others waited for it in a collective operation",
        "give all ranks the same number of batches, or let them end apart: torch.distributed.algorithms.join.Join",
    ),
    status.WRONG_WORLD: (
        "a framework in a rank did not find the other ranks, so that each of them does the work of all",
        "let the launcher's framework set up the ranks; where they are meant to be apart, say one_world=False",
    ),
    status.GANG_INCOMPLETE: (
        "not all nodes of the step came up in time",
        "see why the missing one did not start; gang_timeout says how long the others wait for it",
    ),
    status.IDLE_GPU: (
        "on_idle_gpu of the step says that it must use the devices that it holds",
        (
            "see `stoker gpu` for when they worked; move model and data to the device, or ask for fewer; if long "
            'pauses are meant, raise Monitor(idle_for=…), or say on_idle_gpu="warn"'
        ),
    ),
    status.WORKER_LOST: (
        "the process that held the workers went away",
        "try again; if it recurs, look for what ends it",
    ),
    status.SETUP_FAILED: (
        "a line that prepares the step's place failed, so that the step never began",
        "call the line in a shell on such a node, and mend it: modules, setup, conda or venv",
    ),
    status.REFUSED: ("the backend would not take the step", ""),
}
"""cause → (why, advice), where no row says more; causes that only rows or platforms give are found among the rows."""

TERMINATED: Final = f"look who asked for its end: a person, or a platform that takes its place back; {_LOOK}"
"""The advice after SIGTERM, which the OOM killer never sends."""
