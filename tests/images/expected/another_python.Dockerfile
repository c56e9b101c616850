FROM python:3.12-slim
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
ARG PIP_CACHE_DIR=/var/cache/stoker-pip
ARG UV_BREAK_SYSTEM_PACKAGES=1
ARG UV_LINK_MODE=copy
ARG UV_CACHE_DIR=/var/cache/stoker-uv
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv command -v uv >/dev/null || python3 -m pip install uv
COPY stoker-build/requirements-1-listed.txt /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv uv pip install --python "$(command -v python3)" -r /opt/stoker/requirements-1-listed.txt
COPY stoker-build/stoker-0.1.0+g0123456789ab-py3-none-any.whl /opt/stoker/
RUN --mount=type=cache,target=/var/cache/stoker-pip --mount=type=cache,target=/var/cache/stoker-uv uv pip install --python "$(command -v python3)" 'stoker @ file:///opt/stoker/stoker-0.1.0+g0123456789ab-py3-none-any.whl'
WORKDIR /app
RUN chmod 0777 /app
