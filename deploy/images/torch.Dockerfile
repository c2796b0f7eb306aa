# Workers with PyTorch.
# Another base has python and pip of 3.11 in its path, and apt-get: --build-arg BASE=...
ARG BASE=python:3.11.14-slim-bookworm

# The library and the wheel, with a compiler that the image does not get.
FROM ${BASE} AS wheel
ARG SOURCE_DATE_EPOCH=1700000000
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --constraint constraints.txt --wheel-dir /wheels . ./compat/horovod

FROM ${BASE}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# To look into a running worker.
RUN apt-get update && apt-get install -y --no-install-recommends procps && rm -rf /var/lib/apt/lists/*
RUN --mount=from=wheel,source=/wheels,target=/wheels --mount=from=wheel,source=/source/constraints.txt,target=/constraints.txt \
    pip install --constraint /constraints.txt "$(echo /wheels/farandole-[0-9]*.whl)[torch]" numpy
RUN useradd --create-home --uid 1000 worker
USER 1000:1000
WORKDIR /home/worker
