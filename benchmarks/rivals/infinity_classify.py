"""Infinity's own server with its own batching, in the type that is fastest on this processor."""

from __future__ import annotations

import os

from classifier import native_bfloat16, port, print_versions

if __name__ == "__main__":
    print_versions("infinity_emb", "fastapi", "uvicorn")
    command = ["infinity_emb", "v2", "--model-id", os.environ["RIVAL_MODEL"], "--engine", "torch"]
    command += ["--device", "cpu", "--dtype", "bfloat16" if native_bfloat16() else "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port()), "--log-level", "warning"]
    os.execvp(command[0], command)
