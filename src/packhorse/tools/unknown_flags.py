"""What is said of flags that are not there: of those of other servers also what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

_ONE_ENGINE = "there is one engine; leave it out"
_ONE_GPU = "a server uses one GPU; start one for each (--device cuda:1)"
_NO_CODE = "code that comes with a model is never run; leave it out"

INSTEAD = {
    # text-embeddings-inference
    "--prometheus-port": "metrics are on the main port, at /metrics",
    "--uds-path": "there is no such process behind; --uds listens on a Unix socket",
    "--disable-spans": "no text is ever in a log or a trace; leave it out",
    "--dense-path": "the modules that the model's modules.json names are used; leave it out",
    # vLLM
    "--max-model-len": "requests say truncate_prompt_tokens",
    "--max-num-seqs": "--max-batch-requests",
    "--max-num-batched-tokens": "--max-batch-tokens",
    "--max-num-queued-reqs": "--max-concurrent-requests",
    "--gpu-memory-utilization": "no memory is reserved that is not used; leave it out",
    "--tensor-parallel-size": _ONE_GPU,
    "--data-parallel-size": _ONE_GPU,
    "--runner": "every model here is a pooling model; leave it out",
    "--convert": "--task says what a model shall do",
    "--pooler-config": "--pooling",
    # Infinity
    "--engine": _ONE_ENGINE,
    "--compile": _ONE_ENGINE,
    "--bettertransformer": _ONE_ENGINE,
    "--batch-size": "--max-batch-requests and --max-batch-tokens, which need not be given",
    "--device-id": "--device cuda:N",
    "--pooling-method": "--pooling",
    "--url-prefix": "routes under /v1 are there as they are; leave it out",
    "--permissive-cors": "--cors-allow-origin '*'",
    "--vector-disk-cache": "--response-cache-mb, in memory",
    "--trust-remote-code": _NO_CODE,
    "--no-trust-remote-code": _NO_CODE,
}
"""Flags of text-embeddings-inference, vLLM and Infinity to what stands for them here."""


def unknown(words: Sequence[str]) -> str:
    """The message for words that no argument took."""
    flags = dict.fromkeys(word.partition("=")[0] for word in words)
    hints = [f"{flag}: {INSTEAD[flag]}" for flag in flags if flag in INSTEAD]
    return "; ".join([f"unrecognized arguments: {' '.join(words)}", *hints])
