"""Starts two servers of vLLM on one GPU, one after the other, and says when both serve.

two_servers.py MODEL OPTION ... --port N
"""

from __future__ import annotations

import subprocess
import sys
import time

READY = "Application startup complete"


def serve(words: list[str], port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *words]
    command += ["--port", str(port), "--max-num-seqs", "16", "--gpu-memory-utilization", "0.4"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        sys.stdout.write(line)
        if READY in line:
            return server
    raise SystemExit("a server has ended")


if __name__ == "__main__":
    *words, _, port = sys.argv[1:]
    servers = [serve(words, int(port) + 100 * n) for n in (0, 1)]
    print("both-serve", flush=True)
    while True:
        time.sleep(1)
