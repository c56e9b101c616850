"""Distributions by whether they use accelerators, where no component has more to say of them."""

from __future__ import annotations

from typing import Final

from stoker.plan.packages import HARMLESS

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
