FROM --platform=linux/amd64 nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04
USER root
ARG A
ARG B
ENV Pip_Timeout="60"
ENV http_proxy="http://proxy:3128"
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git libgl1=1.6.0-1 && rm -rf /var/lib/apt/lists/*
COPY --from=mambaorg/micromamba:1.5.8 /bin/micromamba /usr/local/bin/micromamba
RUN if [ -d /opt/conda/conda-meta ]; then set -- install; else set -- create python=3.11 pip; fi; micromamba "$@" -y -p /opt/conda -c conda-forge --override-channels 'ffmpeg>=6' && micromamba clean -a -y
ENV PATH="/opt/conda/bin:$PATH"
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_CACHE_DIR=/var/cache/stoker-pip
ARG NETRC=/run/secrets/netrc
ARG UV_BREAK_SYSTEM_PACKAGES=1
ARG UV_LINK_MODE=copy
ARG UV_CACHE_DIR=/var/cache/stoker-uv
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv --mount=type=secret,id=key --mount=type=secret,id=netrc,target=/run/secrets/netrc command -v uv >/dev/null || python3 -m pip install uv
COPY stoker-build/requirements-1-listed.txt /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv --mount=type=secret,id=key --mount=type=secret,id=netrc,target=/run/secrets/netrc uv pip install --python "$(command -v python3)" -r /opt/stoker/requirements-1-listed.txt
COPY stoker-build/stoker-0.1.0+g0123456789ab-py3-none-any.whl /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv --mount=type=secret,id=key --mount=type=secret,id=netrc,target=/run/secrets/netrc uv pip install --python "$(command -v python3)" 'stoker @ file:///opt/stoker/stoker-0.1.0+g0123456789ab-py3-none-any.whl'
WORKDIR /app
COPY stoker-project/ /app/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv --mount=type=secret,id=key --mount=type=secret,id=netrc,target=/run/secrets/netrc uv pip install --system .
RUN chmod 0777 /app
ENV HF_HOME="/data/it's"
ENV OMP_NUM_THREADS="4"
RUN id -u trainer >/dev/null 2>&1 || useradd --create-home trainer 2>/dev/null || adduser -D trainer
RUN chown -R trainer /app
USER trainer
