# The operator: farandole, and kubectl for launchers that use kubexec.
# The library and the wheel, with a compiler that the image does not get.
FROM python:3.11.14-slim-bookworm AS wheel
ARG SOURCE_DATE_EPOCH=1700000000
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --constraint constraints.txt --wheel-dir /wheels . ./compat/horovod

# kubectl is one static program: launchers copy it into images of any age.
FROM python:3.11.14-slim-bookworm AS kubectl
ARG KUBECTL_VERSION=v1.32.4 TARGETARCH=amd64
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl && rm -rf /var/lib/apt/lists/*
WORKDIR /kubectl
RUN url=https://dl.k8s.io/release/${KUBECTL_VERSION}/bin/linux/${TARGETARCH}/kubectl \
 && curl -fsSLO "$url" && echo "$(curl -fsSL "$url.sha256")  kubectl" | sha256sum -c - && chmod 755 kubectl

FROM python:3.11.14-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
COPY --from=kubectl /kubectl/kubectl /usr/local/bin/kubectl
RUN --mount=from=wheel,source=/wheels,target=/wheels --mount=from=wheel,source=/source/constraints.txt,target=/constraints.txt \
    pip install --constraint /constraints.txt "$(echo /wheels/farandole-[0-9]*.whl)[kubernetes]"
USER 65532:65532
ENTRYPOINT ["farandole"]
CMD ["kubernetes", "operator"]
