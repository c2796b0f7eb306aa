# For MPIJobs that were written for Horovod's images: they find horovodrun, mpirun, sshd and the package horovod.
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
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin openssh-client openssh-server procps \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
RUN --mount=from=wheel,source=/wheels,target=/wheels --mount=from=wheel,source=/source/constraints.txt,target=/constraints.txt \
    pip install --constraint /constraints.txt "$(echo /wheels/farandole-[0-9]*.whl)[torch]" /wheels/farandole_horovod-*.whl numpy
COPY deploy/images/horovod/ssh_config /etc/ssh/ssh_config.d/farandole.conf
COPY deploy/images/horovod/sshd_config /etc/ssh/sshd_config
COPY deploy/images/horovod/sshd /usr/local/sbin/sshd
RUN useradd --create-home --uid 1000 mpiuser \
 && cp /etc/ssh/sshd_config /home/mpiuser/.sshd_config && chmod 755 /usr/local/sbin/sshd \
 && mv /usr/sbin/sshd /usr/sbin/sshd.real && ln -s /usr/local/sbin/sshd /usr/sbin/sshd \
 && mkdir -p /run/sshd /etc/ssh/keys && chown 1000:1000 /run/sshd /etc/ssh/keys
USER 1000:1000
WORKDIR /home/mpiuser
