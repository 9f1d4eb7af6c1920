"""The library for asyncio: a model in this process, whose calls are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from numpy.typing import NDArray

from packhorse import embedding, verbs
from packhorse.encoder import Base
from packhorse.entities import Entity
from packhorse.loaded import Call
from packhorse.request import Float32Array, TextOrPair
from packhorse.tokenizing.masks import TOP_K, Fills
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.vectors import OutputType, SparseVector
from packhorse.verbs import Classification as Classification
from packhorse.verbs import Plan, RankedDocument
from packhorse.zero_shot import TEMPLATE

Result = TypeVar("Result")

AT_ONCE = 2000
"""Rows of an answer that become a result in the event loop, in some 10 ms at most (entities of as
many tokens); those of more in a thread."""


class AsyncEncoder(Base):
    """The same for asyncio: concurrent awaits share batches.

    >>> async with AsyncEncoder() as encoder:                             # doctest: +SKIP
    ...     await encoder.classify(["This product is amazing and I love it!"])
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was asked for, then free the device."""
        await asyncio.to_thread(self._loaded.engine.close)

    async def classify(
        self,
        inputs: Iterable[TextOrPair],
        top_k: int | None = None,
        raw_scores: bool = False,
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
        stride: int | None = None,
    ) -> list[list[Classification]]:
        """As ``Encoder.classify``."""
        return await self._run(
            verbs.classify(
                self._loaded, inputs, top_k, raw_scores, truncate, truncation_direction, stride
            )
        )

    async def predict_proba(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
        stride: int | None = None,
    ) -> Float32Array:
        """As ``Encoder.predict_proba``."""
        return await self._run(
            verbs.probabilities(self._loaded, inputs, truncate, truncation_direction, stride)
        )

    async def zero_shot(
        self,
        texts: Iterable[str],
        labels: Sequence[str],
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
    ) -> list[list[Classification]]:
        """As ``Encoder.zero_shot``."""
        return await self._run(
            verbs.zero_shot(self._loaded, texts, labels, hypothesis_template, multi_label)
        )

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        raw_scores: bool = False,
        truncate: bool = True,
    ) -> list[RankedDocument]:
        """As ``Encoder.rerank``."""
        return await self._run(
            verbs.rerank(self._loaded, query, documents, top_k, raw_scores, truncate)
        )

    async def embed(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        output_type: OutputType = "float32",
        truncate: bool = True,
        truncation_direction: Direction | None = None,
        stride: int | None = None,
    ) -> NDArray[Any]:
        """As ``Encoder.embed``."""
        return await self._run(
            embedding.embed(
                self._loaded,
                texts,
                prompt_name,
                prompt,
                normalize,
                dimensions,
                output_type,
                truncate,
                truncation_direction,
                stride,
            )
        )

    async def embed_tokens(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> list[Float32Array]:
        """As ``Encoder.embed_tokens``."""
        return await self._run(embedding.embed_tokens(self._loaded, texts, prompt_name, truncate))

    async def embed_sparse(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
    ) -> list[SparseVector]:
        """As ``Encoder.embed_sparse``."""
        return await self._run(
            embedding.embed_sparse(
                self._loaded, texts, prompt_name, prompt, truncate, truncation_direction
            )
        )

    async def similarity(
        self,
        first: Iterable[str],
        second: Iterable[str],
        *,
        prompt_name: str | None = None,
    ) -> Float32Array:
        """As ``Encoder.similarity``."""
        return await self._run(embedding.similarity(self._loaded, first, second, prompt_name))

    async def token_classify(
        self,
        texts: Iterable[str],
        aggregation_strategy: str = "none",
        *,
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        truncate: bool = True,
    ) -> list[list[Entity]]:
        """As ``Encoder.token_classify``."""
        return await self._run(
            verbs.token_classify(
                self._loaded, texts, aggregation_strategy, ignore_labels, stride, truncate
            )
        )

    async def fill_mask(
        self,
        texts: Iterable[str],
        top_k: int = TOP_K,
        targets: str | Sequence[str] | None = None,
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
    ) -> list[Fills]:
        """As ``Encoder.fill_mask``."""
        plans = verbs.fill_mask_plans(
            self._loaded, texts, top_k, targets, truncate, truncation_direction
        )
        return [fills for plan in plans for fills in await self._run(plan)]

    async def _run(self, plan: Plan[Result]) -> Result:
        call = Call()
        try:
            pieces = await asyncio.to_thread(plan.submit, call)
            answers = await asyncio.gather(*(asyncio.wrap_future(piece) for piece in pieces))
        except asyncio.CancelledError:
            call.give_up()
            raise
        if sum(len(answer.values) for answer in answers) <= AT_ONCE:
            return plan.result(answers)
        return await asyncio.to_thread(plan.result, answers)
