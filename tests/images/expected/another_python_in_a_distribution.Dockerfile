FROM ubuntu:22.04
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 python3-pip python3-venv python-is-python3 && rm -rf /var/lib/apt/lists/*
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_CACHE_DIR=/var/cache/stoker-pip
ARG UV_BREAK_SYSTEM_PACKAGES=1
ARG UV_LINK_MODE=copy
ARG UV_CACHE_DIR=/var/cache/stoker-uv
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv command -v uv >/dev/null || python3 -m pip install uv
ENV UV_PYTHON_INSTALL_DIR=/opt/python
RUN uv python install 3.12.3 && ln -s "$(dirname "$(dirname "$(uv python find --managed-python 3.12.3)")")" /opt/python/current
ENV PATH="/opt/python/current/bin:$PATH"
COPY stoker-build/stoker-0.1.0+g0123456789ab-py3-none-any.whl /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv uv pip install --python "$(command -v python3)" 'stoker @ file:///opt/stoker/stoker-0.1.0+g0123456789ab-py3-none-any.whl'
WORKDIR /app
RUN chmod 0777 /app
