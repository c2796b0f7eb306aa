# The operator: farandole, and kubectl for launchers that use kubexec.
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

# kubectl is one static program: launchers copy it into images of any age. KUBECTL_VERSION=debian takes Debian's own,
# where nothing but Debian can be reached.
FROM ${BASE} AS kubectl
ARG KUBECTL_VERSION=v1.32.4 TARGETARCH=amd64
WORKDIR /kubectl
RUN apt-get update \
 && if [ "${KUBECTL_VERSION}" = debian ]; then apt-get install -y --no-install-recommends kubernetes-client; \
    else apt-get install -y --no-install-recommends ca-certificates curl; fi \
 && rm -rf /var/lib/apt/lists/*
RUN if [ "${KUBECTL_VERSION}" = debian ]; then cp /usr/bin/kubectl .; else \
      url=https://dl.k8s.io/release/${KUBECTL_VERSION}/bin/linux/${TARGETARCH}/kubectl \
      && curl -fsSLO "$url" && echo "$(curl -fsSL "$url.sha256")  kubectl" | sha256sum -c - ; fi \
 && chmod 755 kubectl

FROM ${BASE}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
COPY --from=kubectl /kubectl/kubectl /usr/local/bin/kubectl
RUN --mount=from=wheel,source=/wheels,target=/wheels --mount=from=wheel,source=/source/constraints.txt,target=/constraints.txt \
    pip install --constraint /constraints.txt "$(echo /wheels/farandole-[0-9]*.whl)[kubernetes]"
USER 65532:65532
ENTRYPOINT ["farandole"]
CMD ["kubernetes", "operator"]
