"""Throughput of the service compared with `predict`, latencies, and memory over many requests.

    python benchmarks/service.py [--images 256] [--requests 10000] [--clients 16] [--backbone ViT-B-32] [--json FILE]

`slimprompt serve` runs in a process of its own; clients are threads of this process, which send one image per request and keep
their connections. `predict` of a loaded classifier on the same files, and the service, are measured alternately, best of three;
the first round is not counted. Then `--requests` requests are sent, and the memory of the service is read ten times on the way.
"""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _output import make_parser, print_results
from bank import seconds, write_images
from text_encoder import names

from slimprompt import Classifier, load_backbone, start_prompt
from slimprompt.allocator import keep_freed_memory
from slimprompt.prompts.spec import make_spec

BOUNDARY = "benchmark"


class Load(NamedTuple):
    """Seconds in total, and of each request."""

    total: float
    each: list[float]


@contextmanager
def service(model: Path):
    """Port of a running service."""
    command = [sys.executable, "-c", "from slimprompt.cli import main; main()", "serve", str(model)]
    process = subprocess.Popen([*command, "--port", "0", "--device", "cpu"], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if found := re.search(r"listening on \S+:(\d+)", line):
                yield int(found[1])
                return
        raise SystemExit("the service did not start")
    finally:
        process.terminate()
        process.wait()


def bodies(paths: Sequence[Path]) -> list[bytes]:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'.encode()
    return [head + path.read_bytes() + f"\r\n--{BOUNDARY}--\r\n".encode() for path in paths]


def send(port: int, requests: Sequence[bytes], n_requests: int, n_clients: int) -> Load:
    """Send requests in turn from several clients."""
    numbers, each = count(), []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        while (number := next(numbers)) < n_requests:
            start = time.perf_counter()
            connection.request("POST", "/predict", requests[number % len(requests)], headers)
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise SystemExit(f"status {response.status}")
            each.append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(n_clients)]
    total = seconds(lambda: [*map(threading.Thread.start, threads), *map(threading.Thread.join, threads)])
    if len(each) != n_requests:
        raise SystemExit(f"only {len(each)} of {n_requests} requests were answered")
    return Load(total, each)


def metric(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return float(re.search(rf"^slimprompt_{name} (\S+)$", text, re.MULTILINE)[1])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--size", type=int, default=400, help="pixels of an image's side")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--backbone", default="ViT-B-32")
    options = parser.parse_args()
    keep_freed_memory()
    pretrained = None if options.backbone.startswith("pocket") else "random:0"
    backbone = load_backbone(options.backbone, pretrained, device="cpu")
    prompt = start_prompt("fixed-B", width=backbone.text_width, seed=0, rank=4, basis="orthogonal")
    classifier = Classifier.of_prompt(backbone, prompt, make_spec(rank=4), names(options.classes))
    with tempfile.TemporaryDirectory() as folder:
        model = classifier.save(Path(folder) / "model")
        paths = write_images(Path(folder), options.images, options.size)
        requests = bodies(paths)
        with service(model) as port:
            rounds = []
            for _ in range(4):
                predict = seconds(lambda: classifier.predict(paths))
                rounds.append((predict, send(port, requests, len(requests), options.clients)))
            batch = metric(port, "encoded_images_total") / metric(port, "batches_total")
            predict = min(one for one, _ in rounds[1:])
            best = min((load for _, load in rounds[1:]), key=lambda load: load.total)
            memory = [metric(port, "resident_memory_bytes") / 1e6]
            for _ in range(10):
                send(port, requests, options.requests // 10, options.clients)
                memory.append(metric(port, "resident_memory_bytes") / 1e6)
    p50, p95 = (1000 * float(np.percentile(best.each, q)) for q in (50, 95))
    print(
        f"{backbone.name}, {options.clients} clients: {len(paths) / best.total:.1f} images/s, {predict / best.total:.2f} of "
        f"predict; p50 {p50:.0f} ms, p95 {p95:.0f} ms; {batch:.1f} images per batch\n"
        f"memory in MB, before and during {options.requests:,} requests: {', '.join(f'{value:.0f}' for value in memory)}"
    )
    result = {
        "backbone": backbone.name,
        "images": options.images,
        "clients": options.clients,
        "images_per_s": len(paths) / best.total,
        "throughput_over_predict": predict / best.total,
        "p50_ms": p50,
        "p95_ms": p95,
        "images_per_batch": batch,
        "requests": options.requests,
        "memory_mb": memory,
    }
    print_results(result, options.json)


if __name__ == "__main__":
    main()
