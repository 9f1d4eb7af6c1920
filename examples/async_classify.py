"""Many coroutines, one model: what they ask for at the same time shares batches."""

import asyncio

from packhorse import AsyncEncoder

TEXTS = ["This product is amazing and I love it!", "Terrible service."]


async def main() -> None:
    async with AsyncEncoder() as encoder:
        answers = await asyncio.gather(*(encoder.classify([text], top_k=1) for text in TEXTS))
    for text, [[best]] in zip(TEXTS, answers, strict=True):
        print(f"{best.label:<10}{best.score:.3f}  {text}")


asyncio.run(main())
