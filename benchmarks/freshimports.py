"""Steps with a process of their own that import numpy in their body, and a bare fork with numpy loaded beside them."""

from __future__ import annotations

import json
import os
import sys
import time

from stoker import pipeline, step


@step(isolation="fresh")
def plus(x: int) -> int:
    import numpy as np

    return int(np.add(x, 1))


@pipeline
def chain(n: int) -> None:
    value = plus(0)
    for _ in range(n - 1):
        value = plus(value)


def floor(n: int) -> None:
    import numpy as np

    value = 0
    for _ in range(n):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, str(int(np.add(value, 1))).encode())
            os._exit(0)
        os.close(writer)
        value = int(os.read(reader, 1000))
        os.close(reader)
        os.waitpid(pid, 0)


def main() -> None:
    n = int(sys.argv[2])
    started = time.perf_counter()
    if sys.argv[1] == "floor":
        floor(n)
    else:
        chain(n)
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
