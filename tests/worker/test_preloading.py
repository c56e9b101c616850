"""Packages that are imported before a fork: each computes in parallel after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.worker.imports import FORKABLE, ImportWatch, load

FORKED = """
import os, signal, threading, {name}
from stoker.worker import imports
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # what hangs fails
{work}
        os._exit(0 if threads() > 1 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(threading.active_count())
"""
"""Imports a package and forks three times; each child computes and looks how many threads it has by then."""

THREADS = """
        def threads():
            return len(os.listdir("/proc/self/task"))
"""

WORK = {
    "numpy": """
        import numpy as np
        a = np.ones((600, 600))
        assert (a @ a == 600).all()
""",
    "scipy": """
        import scipy.fft, scipy.linalg, numpy as np
        a = np.eye(600) * 2
        assert np.allclose(scipy.linalg.inv(a), np.eye(600) / 2)
        b = np.random.rand(64, 4096)
        assert np.allclose(scipy.fft.ifft(scipy.fft.fft(b, workers=4), workers=4).real, b)
""",
    "pandas": """
        import io, pyarrow, pyarrow.csv, pandas
        text = "x,y\\n" + "\\n".join(f"{n},{n}" for n in range(200_000))
        table = pyarrow.csv.read_csv(io.BytesIO(text.encode()), read_options=pyarrow.csv.ReadOptions(block_size=4096))
        assert table.to_pandas().x.sum() == sum(range(200_000))
""",
    "sklearn": """
        import numpy as np, sklearn.ensemble, sklearn.cluster
        x = np.random.default_rng(0).normal(size=(4000, 8))
        sklearn.cluster.KMeans(8, n_init=1).fit(x)
        sklearn.ensemble.HistGradientBoostingRegressor(max_iter=3).fit(x, x[:, 0])
""",
    "torch": """
        import torch
        torch.set_num_threads(4)
        a = torch.ones(700, 700)
        assert bool((a @ a == 700).all())
        a.requires_grad_()
        (a * 2).sum().backward()
        assert bool((a.grad == 2).all())
""",
}
"""Package → what a forked child does with it, on several threads."""


@pytest.mark.parametrize("name", FORKABLE)
def test_a_package_computes_in_parallel_after_a_fork(name: str) -> None:
    pytest.importorskip(name)
    code = FORKED.format(name=name, work=THREADS + WORK[name])
    threads = {"OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"}
    environment = {**threads, "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", code]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "1\n", "Python knows of no other thread that a fork would lose"


def test_what_is_no_package_of_the_table_is_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load(["this", "antigravity"]) == () and "this" not in sys.modules
    watch = ImportWatch(())
    for name in FORKABLE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    watch = ImportWatch(())
    assert load(["numpy"]) == ("numpy",)
    assert watch.seen() == (), "a module of the user's own that is called so"
    monkeypatch.delitem(sys.modules, "numpy")
