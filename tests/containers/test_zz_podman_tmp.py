import os, pytest, subprocess
from tests.containers import test_docker_backend as T, test_docker_devices as D
from tests.containers.bench import Bench
from tests.servers.containers import Engine
from stoker.images.wheel import worker_bundle
S="unix:///tmp/engD/pd/podman.sock"
@pytest.fixture(scope="session")
def engine():
    return Engine(socket=S, environment={"DOCKER_HOST":S}, client="docker")
@pytest.fixture(scope="session")
def base_image(): return "localhost/minipy:1"
@pytest.fixture(scope="session")
def bundle(tmp_path_factory): return worker_bundle(tmp_path_factory.mktemp("w"))
@pytest.fixture
def bench(tmp_path, engine, base_image, bundle, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", S)
    m=Bench(tmp_path, base_image, bundle); yield m
    for b in m.made: b.close()
for n,f in list(vars(T).items())+list(vars(D).items()):
    if n.startswith("test_"): globals()[n]=f
