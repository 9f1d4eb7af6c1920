"""FastAPI as someone writes it who has read about batching: a queue, and one thread that runs it.

A batch is what queued while the last one ran, at most 32 texts; no waiting for more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from classifier import Classifier, port, print_versions
from fastapi import FastAPI
from pydantic import BaseModel

MOST = 32

classifier = Classifier()
waiting: asyncio.Queue[tuple[str, asyncio.Future[Any]]]


class Request(BaseModel):
    inputs: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    global waiting
    waiting = asyncio.Queue()
    task = asyncio.create_task(run_batches())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


async def run_batches() -> None:
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    while True:
        batch = [await waiting.get()]
        while len(batch) < MOST and not waiting.empty():
            batch.append(waiting.get_nowait())
        rows = await loop.run_in_executor(thread, classifier.predict, [text for text, _ in batch])
        for (_, future), row in zip(batch, rows, strict=True):
            if not future.done():
                future.set_result(row)


@app.post("/predict")
async def predict(request: Request) -> Any:
    future = asyncio.get_running_loop().create_future()
    await waiting.put((request.inputs, future))
    return await future


if __name__ == "__main__":
    print_versions("fastapi", "uvicorn")
    uvicorn.run(app, port=port(), log_level="warning")
