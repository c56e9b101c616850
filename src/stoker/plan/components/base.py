"""The type of a component, and what components share: does a CUDA run on the driver, does code run on the chips?

A component reads so: its table has the facts of each version, each row with its source; `check` looks the step's
version up and yields

* a `Fact` for what is known and fits, with the row's source;
* an `UnknownFact` for what is not known: no row for this version, a version that is decided only at the installation, a
  device or driver that is not known;
* a `Finding` of level "error" for what is known not to fit. It refuses the plan, so that only facts may lead to it. A
  step with `facts.required` False runs without its devices, and then the level is "info": `problem_finding` does it.

A check that yields nothing says that its component has no part in whether the devices can be used. Checks start
nothing, read no file and use no network.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable, Iterator, Sequence

import attrs

from stoker.core.findings import Finding
from stoker.core.receipt import Fact, UnknownFact
from stoker.plan.packages import HARMLESS
from stoker.plan.rules import PlanFacts, StepDistribution
from stoker.vendors.builds import Hardware, Version, dotted, numbers
from stoker.vendors.nvidia.builds import FIRST_CUDA, FLOORS, covers, runs

Evidence = Fact | UnknownFact | Finding

DRIVER: Final = "driver"
CHIP: Final = "chip"
MINOR_VERSIONS: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
TOOLKIT_DRIVERS: Final = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes, table 3"


@attrs.frozen(kw_only=True)
class ProofComponent:
    """One thing that decides whether a step can use its accelerators: a framework, a package, the driver, the chip.

    A distribution registers its own by an entry point in the group `stoker.components`.
    """

    name: str
    """As facts and reasons name it: "torch"."""
    distributions: frozenset[str] = frozenset()
    """Canonical names of the distributions that it knows; with none it is asked of every step with accelerators. A
    distribution of which no component knows counts as one that has no part in it, unless `known.USES_DEVICES` has it.
    """
    check: Callable[[PlanFacts, Sequence[StepDistribution]], Iterable[Evidence]]
    """Called with those of its distributions that the step will find, if there is one, or with all of them if it names
    none."""


def runs_cuda(facts: PlanFacts, cuda: Version, needed_by: str) -> Iterator[Fact | UnknownFact]:
    """Whether the drivers of all devices that the step could get run a CUDA.

    `needed_by` is the title of what was built for it. A driver that is too old is an `UnknownFact` here, so that no
    step is proved with it; refusing the plan is up to the rule or the component that knows more.
    """
    for held in facts.targets:
        if held.kind != "nvidia":
            continue
        if held.cuda is None and not (held.driver and cuda[0] in FLOORS):
            yield UnknownFact(
                component=DRIVER,
                reason=f"the driver of {models_text(held)} is not known: {needed_by} needs one that runs CUDA "
                f"{dotted(cuda)}{_floor_text(cuda)}",
            )
        elif runs(cuda, held.driver, held.cuda):
            yield Fact(
                component=DRIVER,
                fact=f"{driver_text(held)} runs CUDA {dotted(cuda)}",
                source=_driver_source(cuda, held),
            )
        else:
            text = f"{driver_text(held)} does not run CUDA {dotted(cuda)} of {needed_by}{_floor_text(cuda)}"
            yield UnknownFact(component=DRIVER, reason=text)


def has_code(
    facts: PlanFacts, archs: Sequence[str], cuda: Version | None, *, title: str, source: str
) -> Iterator[Fact | UnknownFact]:
    """Whether code for some chips runs on all that the step could get.

    `archs` is a list as `vendors.nvidia.builds.archs_of` gives it, `title` what has the code: "torch 2.4.0+cu121". A
    chip without code is an `UnknownFact`, as in `runs_cuda`.
    """
    component = title.partition(" ")[0]
    for held in facts.targets:
        for chip, model in held.chips.items():
            way = covers(archs, chip, cuda)
            name = f"sm_{chip[0]}{chip[1]}"
            too_new = way == "ptx" and bool(held.cuda and cuda and tuple(held.cuda) < tuple(cuda))
            if way == "code":
                yield Fact(component=component, fact=f"{title} has code for {name} ({model})", source=source)
            elif way == "ptx" and (first := first_cuda(chip, cuda)):
                yield UnknownFact(component=component, reason=only_ptx_text(title, f"{name} ({model})", cuda, first))
            elif way == "ptx" and not too_new:
                text = f"{title} has PTX, which the driver compiles for {name} ({model})"
                yield Fact(component=component, fact=text, source=source)
            else:
                reason = f"{title} has no code for {name} ({model})"
                yield UnknownFact(
                    component=component, reason=reason + (" that this driver compiles" if too_new else "")
                )


def first_cuda(chip: tuple[int, int], cuda: Version | None) -> Version:
    """The first CUDA whose libraries have code for a chip, if `cuda` is older than that; else nothing."""
    first = FIRST_CUDA.get(chip[0], ())
    # (12,) is any CUDA 12
    return first if cuda and tuple(cuda[:2]) < first[: len(cuda)] else ()


def only_ptx_text(title: str, chip: str, cuda: Version | None, first: Version) -> str:
    """Why PTX is no proof: the libraries beside it, cuBLAS and cuDNN, are from before the chip."""
    libraries = f"the libraries of CUDA {dotted(cuda or ())} have no code for it"
    return f"{title} has only PTX for {chip}, and {libraries}: those of {dotted(first)} are the first"


def below_minimum(facts: PlanFacts, least: Version) -> Iterator[tuple[Hardware, str]]:
    """The devices whose compute capability is below a minimum, each with its words: "T4 (sm_75)"."""
    for held in facts.targets:
        for chip, model in held.chips.items():
            if chip < tuple(least):
                yield held, f"{model} (sm_{chip[0]}{chip[1]})"


def problem_finding(facts: PlanFacts, code: str, what: str, *, why: str = "", fix: str = "") -> Finding:
    """The finding about something that is known not to fit: an error unless the step may run without its devices."""
    level = "error" if facts.required else "info"
    return Finding(code=code, level=level, where=facts.where, what=what, why=why, fix=fix)  # type: ignore[arg-type]


def no_facts(item: StepDistribution, of: str = "") -> UnknownFact:
    """That the tables have nothing of a distribution's version, or that its version is not known before it is
    installed; `of` says under which circumstances: "on an image without cuDNN"."""
    if not item.version:
        reason = f"{item.text or item.name}: its version is decided when it is installed, pin it"
    else:
        reason = f"no facts for {item.title}" + (f" {of}" if of else "")
    return UnknownFact(component=item.name, reason=reason)


def models_text(held: Hardware) -> str:
    """The models of some devices, "L4 or A10G"; "the devices" if they are not known."""
    return " or ".join(held.models or tuple(held.chips.values())) or "the devices"


def driver_text(held: Hardware) -> str:
    """`"driver 550.54.15"`; `"the driver (CUDA 12.4)"` if only its CUDA is known."""
    return f"driver {held.driver}" if held.driver else f"the driver (CUDA {dotted(held.cuda or ())})"


def _floor_text(cuda: Version) -> str:
    floor = FLOORS.get(cuda[0])
    return f" (driver {floor} or later)" if floor else ""


def _driver_source(cuda: Version, held: Hardware) -> str:
    if held.cuda is not None and tuple(held.cuda) >= tuple(cuda):
        return TOOLKIT_DRIVERS
    return MINOR_VERSIONS if numbers(held.driver) else TOOLKIT_DRIVERS


USES_DEVICES: Final = frozenset(
    """apex auto-gptq autoawq awq bitsandbytes catboost causal-conv1d chainer ctranslate2 cucim-cu12 cudf-cu11
    cudf-cu12 cudf-cu13 cudnn-frontend cugraph-cu11 cugraph-cu12 cugraph-cu13 cuml-cu11 cuml-cu12 cuml-cu13 cupy
    cupy-cuda11x cupy-cuda12x cupy-cuda13x cupy-wheel cuvs-cu12 cuvs-cu13 dask-cudf-cu12 dask-cudf-cu13 deep-ep
    deep-gemm deepspeed dgl dgl-cu118 exllamav2 exllamav3 fairscale fairseq faiss-gpu faiss-gpu-cu11
    faiss-gpu-cu12 fast-hadamard-transform faster-whisper flash-attn flash-attn-3 flash-attn-4 flashinfer-cubin
    flashinfer-python gptqmodel grouped-gemm habana-torch-plugin intel-extension-for-pytorch jax jax-cuda12-pjrt
    jax-cuda12-plugin jax-cuda13-pjrt jax-cuda13-plugin jax-rocm7-plugin jaxlib k2 kaolin libcudf-cu12
    libcudf-cu13 libcuml-cu12 libcuml-cu13 librmm-cu12 librmm-cu13 llama-cpp-python lmdeploy mamba-ssm
    minkowskiengine mmcv mmcv-full mmdet3d mxnet mxnet-cu112 natten nemo-toolkit nerfacc numba-cuda nvdiffrast
    nvidia-dali-cuda110 nvidia-dali-cuda120 nvidia-dali-cuda130 nvidia-modelopt nvidia-nvimgcodec-cu12
    onnxruntime onnxruntime-gpu onnxruntime-rocm onnxruntime-training open3d paddlepaddle-gpu pycuda pyg-lib
    pylibcudf-cu12 pylibcudf-cu13 pyopencl pytorch3d rmm-cu12 rmm-cu13 sageattention sgl-kernel sglang spacy
    spconv-cu118 spconv-cu120 spconv-cu121 tensorflow tensorflow-gpu tensorflow-rocm tensorrt tensorrt-cu11
    tensorrt-cu12 tensorrt-cu13 tensorrt-llm thinc-gpu-ops tilelang tinycudann torch-cluster torch-directml
    torch-neuron torch-neuronx torch-scatter torch-sparse torch-spline-conv torch-tensorrt torch-xla torchao
    torchaudio torchcodec torchsparse torchvision transformer-engine transformer-engine-cu12
    transformer-engine-cu13 transformer-engine-torch triton tritonclient-cuda unsloth vllm warp-lang xformers
    xgboost""".split()  # noqa: SIM905
)
"""Distributions that use the GPU. One of them without a component that knows its version is not proved."""

_LIBRARIES: Final = (
    *("cublas", "cuda-cccl", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft", "cufile"),
    *("curand", "cusolver", "cusparse", "cusparselt", "nccl", "nvjitlink", "nvshmem", "nvtx", "nvvm"),
)
CUDA_LIBRARIES: Final = frozenset(
    f"nvidia-{name}{suffix}" for name in _LIBRARIES for suffix in ("", "-cu11", "-cu12", "-cu13")
) | {"cuda-bindings", "cuda-core", "cuda-pathfinder", "cuda-python", "cuda-toolkit"}
"""NVIDIA's libraries as wheels: they compute for what loads them (`cudalibraries`), and not by themselves."""
USES_NO_DEVICES: Final = (
    HARMLESS
    | CUDA_LIBRARIES
    | frozenset(
        """absl-py accelerate aiohttp albumentations alembic altair annotated-types anyio argon2-cffi arrow
    asyncpg av azure-identity azure-storage-blob beautifulsoup4 biopython black bokeh boto3 botocore braceexpand
    cachetools celery certifi chardet charset-normalizer chromadb comet-ml confluent-kafka contourpy
    cryptography cycler cython dask datasets decorator deepdiff diffusers distributed docker docopt
    docstring-parser dvc editdistance einops elasticsearch emoji etils evaluate fairlearn faiss-cpu fastai
    fastapi fasttext feature-engine ffmpeg-python filelock filterpy fire flake8 flask flask-cors flatbuffers
    flax fonttools ftfy funcy fuzzywuzzy gast gensim geopandas gitpython google-auth google-cloud-aiplatform
    google-cloud-bigquery google-cloud-storage gpustat gputil gradio gradio-client graphviz grpcio grpcio-tools
    gunicorn gymnasium hdbscan hf-transfer huggingface-hub hydra-core hypothesis idna imageio-ffmpeg
    imbalanced-learn imgaug importlib-metadata interpret invoke ipykernel ipython ipywidgets isort itsdangerous
    jiwer jsonlines jsonschema jupyter jupyterlab kafka-python kagglehub keras keras-core keras-nlp keras-tuner
    kiwisolver kornia langchain langchain-community langchain-core langchain-openai lazy-loader levenshtein
    librosa lightgbm lightning lightning-utilities llama-index llvmlite lmdb lxml markdown markupsafe minio
    ml-collections ml-dtypes monai more-itertools moto mpi4py msgpack multidict multiprocess mypy natsort
    neptune nibabel numba numexpr nvidia-ml-py onnx onnx-simplifier onnxslim open-clip-torch openai
    openai-whisper opencv-contrib-python opencv-python opencv-python-headless opt-einsum optax orbax-checkpoint
    packaging pandas-stubs pandera parquet patsy peft pexpect pika pip platformdirs plotly-express pluggy
    poetry-core polars-lts-cpu pooch portalocker pre-commit progressbar2 prometheus-client prompt-toolkit
    psycopg psycopg2-binary py-cpuinfo pyannote-core pyasn1 pycocotools pycryptodome pydantic-core
    pydantic-settings pydicom pydub pygments pyjwt pymongo pymysql pynvml pyparsing pyspark pytest-cov
    python-dateutil python-dotenv python-json-logger python-multipart pytorch-lightning pytorch-metric-learning
    pytz pywavelets pyzmq rapidfuzz ray redis reportlab resampy responses rouge-score ruff sacrebleu sacremoses
    schedule segmentation-models-pytorch selenium sentence-transformers sentry-sdk setproctitle setuptools shap
    shapely simpleitk simplejson simsimd six sktime smart-open smmap sniffio sounddevice soundfile soupsieve
    soxr spacy-legacy spacy-loggers spacy-transformers srsly starlette statsmodels streamlit supervision tbb
    tenacity tensorboard-data-server tensorboardx tensorflow-datasets tensorflow-estimator tensorflow-hub
    tensorflow-io-gcs-filesystem termcolor textblob tf-keras thop threadpoolctl tifffile timm toml tomli toolz
    torch-geometric torch-optimizer torchdata torchinfo torchmetrics torchsummary tornado transformers trl
    typeguard tzdata ultralytics umap-learn uncertainties unidecode urllib3 uv uvicorn uvloop virtualenv
    wandb-core watchdog watchfiles webdataset websockets werkzeug wheel whylogs wrapt xarray xlrd xlsxwriter
    xxhash yacs yarl zarr zipp zstandard""".split()  # noqa: SIM905
    )
)
"""Distributions that compute on no device by themselves: pure Python, or for the CPU. Some require a framework, which a
lock, or `plan.packages.NEEDS_TORCH`, names."""
