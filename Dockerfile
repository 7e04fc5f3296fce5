# docker build -t siteless .
# docker run --rm -u "$(id -u):$(id -g)" -v "$PWD:/data" siteless check my_study
FROM python:3.12-slim-bookworm

# siteless uses MRtrix3, where it is, to denoise and to find fibres.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mrtrix3 \
    && rm -rf /var/lib/apt/lists/*

# An index with CPU builds of torch, where the usual one has none.
ARG PIP_EXTRA_INDEX_URL
COPY . /opt/siteless
RUN pip install --no-cache-dir -c /opt/siteless/constraints.txt '/opt/siteless[combat,dask,fod]'

# Any user may run it, also one without a home: caches go where all may write.
ENV HOME=/tmp/home
RUN mkdir --mode=1777 /tmp/home && siteless --version
WORKDIR /data
ENTRYPOINT ["siteless"]
CMD ["--help"]
