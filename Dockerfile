# The service of slimprompt on CPU; see docs/service.md.
FROM python:3.11-slim

# Address of an index with CPU wheels of PyTorch (its installation page names one): the usual wheels bring GBs of CUDA libraries.
ARG TORCH_INDEX
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN PIP_INDEX_URL="$TORCH_INDEX" pip install --no-cache-dir "torch>=2.6,<3" "torchvision>=0.21,<1" \
    && pip install --no-cache-dir "/src[serve]" \
    && rm -rf /src \
    && useradd --create-home --uid 10001 slimprompt \
    && install -d -o 10001 -g 10001 /home/slimprompt/.cache

# Weights of CLIP are downloaded to /home/slimprompt/.cache once; mount a volume there to keep them. A new volume gets its owner.
USER 10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["slimprompt", "serve", "--host", "0.0.0.0", "--port", "8000", "--device", "cpu"]
CMD ["--help"]
