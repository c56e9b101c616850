FROM python:3.11-slim
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_NO_CACHE_DIR=1
ARG UV_BREAK_SYSTEM_PACKAGES=1
ARG UV_LINK_MODE=copy
ARG UV_NO_CACHE=1
RUN command -v uv >/dev/null || python3 -m pip install uv
COPY stoker-build/requirements-1-listed.txt /opt/stoker/
RUN uv pip install --python "$(command -v python3)" -r /opt/stoker/requirements-1-listed.txt
COPY stoker-build/stoker-0.1.0+g0123456789ab-py3-none-any.whl /opt/stoker/
RUN uv pip install --python "$(command -v python3)" 'stoker @ file:///opt/stoker/stoker-0.1.0+g0123456789ab-py3-none-any.whl'
WORKDIR /app
RUN chmod 0777 /app
