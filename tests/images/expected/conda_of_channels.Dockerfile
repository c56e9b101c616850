FROM python:3.10-slim
COPY --from=mambaorg/micromamba:1.5.8 /bin/micromamba /usr/local/bin/micromamba
RUN if [ -d /opt/conda/conda-meta ]; then set -- install; else set -- create python=3.10 pip; fi; micromamba "$@" -y -p /opt/conda -c bioconda -c conda-forge --override-channels python=3.10 'ffmpeg>=6' bioconda::samtools==1.20 && micromamba clean -a -y
ENV PATH="/opt/conda/bin:$PATH"
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_CACHE_DIR=/var/cache/stoker-pip
ARG UV_BREAK_SYSTEM_PACKAGES=1
ARG UV_LINK_MODE=copy
ARG UV_CACHE_DIR=/var/cache/stoker-uv
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv command -v uv >/dev/null || python3 -m pip install uv
COPY stoker-build/stoker-0.1.0+g0123456789ab-py3-none-any.whl /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv uv pip install --python "$(command -v python3)" 'stoker @ file:///opt/stoker/stoker-0.1.0+g0123456789ab-py3-none-any.whl'
WORKDIR /app
RUN chmod 0777 /app
