# The command bench in a container: docker build -t bench . && docker run --rm -v "$PWD:/runs" bench run --backend sim
ARG PYTHON=3.12.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev
COPY .ci/core.lock .ci/installer.lock .ci/
RUN pip install --no-cache-dir --require-hashes -r .ci/installer.lock \
 && uv venv /opt/bench \
 && uv pip install --no-cache --python /opt/bench --compile-bytecode --require-hashes -r .ci/core.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY harness harness
COPY workloads workloads
COPY backends backends
COPY reports reports
RUN HATCH_BUILD_HOOKS_ENABLE=1 uv build --quiet --wheel --out-dir dist \
 && uv pip install --no-cache --python /opt/bench --compile-bytecode --no-deps dist/*.whl

FROM python:${PYTHON}
COPY --from=build /opt/bench /opt/bench
RUN useradd --uid 10001 --user-group --no-create-home bench && install -d -o bench -g bench /runs
ENV PATH=/opt/bench/bin:$PATH
USER 10001:10001
WORKDIR /runs
ENTRYPOINT ["bench"]
CMD ["--help"]
