"""The library: a model in this process, for threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast

from numpy.typing import NDArray

from packhorse import embedding, verbs
from packhorse.checkpoint import load_checkpoint
from packhorse.config import (
    AUTO,
    Config,
    EngineOptions,
    ModelOptions,
    resolve,
)
from packhorse.configured import pooling_of, task_of
from packhorse.entities import Entity
from packhorse.hardware import detect
from packhorse.loaded import Call, Loaded
from packhorse.request import Float32Array, Sequences, TextOrPair, joined
from packhorse.tokenizing.masks import TOP_K, Fills
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.vectors import OutputType, SparseVector
from packhorse.verbs import Classification as Classification
from packhorse.verbs import Plan, RankedDocument, checked_inputs
from packhorse.zero_shot import TEMPLATE

Result = TypeVar("Result")


class Base:
    """Loading and closing, alike for both encoders.

    model       hub id or folder; None for the embedded demo model
    device      auto, cpu, cuda or cuda:N
    dtype       auto, float32, bfloat16, float16 (on a GPU) or int8 (on a CPU)
    task        auto, classify, rerank, token_classify, embed, embed_sparse or fill_mask; auto: what
                the model was made for
    pooling     where texts are embedded: auto, cls, mean, max, mean_sqrt_len, weighted_mean or
                last; splade for embed_sparse
    revision, token, offline, cache_dir   of the hub
    allow_pickle  whether pytorch_model.bin may be read where there are no safetensors
    tokenizer   auto, nanotoken, gigatoken or tokenizers
    threads     of the CPU engine; None for the container's quota
    max_batch_tokens, max_batch_time      bounds of a batch; time in ms, None for no bound
    without     names of optimisations to switch off (``config.OPTIMISATIONS``), for comparison

    Raises ConfigError, CheckpointError or DeviceError, each saying what to do.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        device: str = AUTO,
        dtype: str = AUTO,
        *,
        task: str = AUTO,
        pooling: str = AUTO,
        revision: str | None = None,
        token: str | None = None,
        offline: bool = False,
        cache_dir: str | Path | None = None,
        allow_pickle: bool = False,
        tokenizer: str = AUTO,
        threads: int | None = None,
        max_batch_tokens: int | None = None,
        max_batch_time: float | None = None,
        without: Sequence[str] = (),
    ) -> None:
        config = Config(
            ModelOptions(
                model_id=None if model is None else str(model),
                task=task,
                pooling=pooling,
                device=device,
                dtype=dtype,
                allow_pickle=allow_pickle,
                tokenizer=tokenizer,
            ),
            EngineOptions(
                max_batch_tokens=AUTO if max_batch_tokens is None else max_batch_tokens,
                max_batch_time=math.inf if max_batch_time is None else max_batch_time,
                threads=AUTO if threads is None else threads,
                # A text stays one, to be refused as such and not by its first letter.
                without=cast(Any, without) if isinstance(without, str) else tuple(without),
            ),
        )
        config = resolve(config, detect())  # first: a wrong option needs no download
        checkpoint = load_checkpoint(
            model,
            revision=revision,
            token=token,
            offline=offline,
            cache_dir=cache_dir,
            task=task_of(config),
            pooling=pooling_of(config),
            allow_pickle=config.model.allow_pickle,
        )
        self._loaded = Loaded(config, checkpoint)

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: to be copied, or sent to another process, is not for an encoder."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: its model belongs to a thread of "
            "this process; threads share one, and other processes make their own"
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the checkpoint's order: the columns of ``predict_proba``."""
        return self._loaded.checkpoint.labels

    @property
    def task(self) -> str:
        """What the model does: one of the tasks that it can be loaded for."""
        return self._loaded.checkpoint.task.value

    @property
    def info(self) -> dict[str, Any]:
        """Model, device, dtype, limits and tokenizer that are in use."""
        tokenizer = self._loaded.tokenizer
        return self._loaded.engine.info | {
            "tokenizer": tokenizer.backend,
            "max_input_length": tokenizer.max_length,
        }


class Encoder(Base):
    """A model in this process; safe to use from several threads.

    >>> with Encoder() as encoder:
    ...     encoder.classify(["This product is amazing and I love it!"])[0][0].label
    'POSITIVE'
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what other threads asked for, then free the device."""
        self._loaded.engine.close()

    def classify(
        self,
        inputs: Iterable[TextOrPair],
        top_k: int | None = None,
        raw_scores: bool = False,
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
        stride: int | None = None,
    ) -> list[list[Classification]]:
        """For each text or pair: its labels and scores, best first.

        top_k       how many labels of each; None for all
        raw_scores  logits instead of probabilities
        stride      read a long text in windows that share so many tokens, and take the mean of
                    their scores, weighted by their tokens; None: cut it

        Raises ValidationError or TokenizationError naming the input at fault, TaskError for
        a model that does something else, and NonFiniteOutputError when the model gives NaN
        or infinity for one.
        """
        return self._run(
            verbs.classify(
                self._loaded, inputs, top_k, raw_scores, truncate, truncation_direction, stride
            )
        )

    def predict_proba(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
        stride: int | None = None,
    ) -> Float32Array:
        """Scores, float32 (n, labels), in the order of ``labels``. All as in ``classify``."""
        return self._run(
            verbs.probabilities(self._loaded, inputs, truncate, truncation_direction, stride)
        )

    def zero_shot(
        self,
        texts: Iterable[str],
        labels: Sequence[str],
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
    ) -> list[list[Classification]]:
        """For each text: labels of your own and their scores, best first.

        hypothesis_template  a sentence with {} where a label is put
        multi_label          each label by itself; else their scores add up to 1

        Needs a model of natural-language inference: a classifier of pairs with a label that
        begins with "entail". What is too long loses tokens of the text, never of the label's
        sentence, as in Transformers' pipeline. Errors as in ``classify``.
        """
        return self._run(
            verbs.zero_shot(self._loaded, texts, labels, hypothesis_template, multi_label)
        )

    def rerank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        raw_scores: bool = False,
        truncate: bool = True,
    ) -> list[RankedDocument]:
        """The documents with their scores, those that answer the query best first.

        top_k       how many of them; None for all
        raw_scores  logits; else what the model's sentence-transformers settings put after
                    them, the sigmoid if those say nothing

        Needs a classifier with a single label. Errors as in ``classify``.
        """
        return self._run(verbs.rerank(self._loaded, query, documents, top_k, raw_scores, truncate))

    def embed(
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
        """A vector for each text, (n, width), as sentence-transformers computes it.

        prompt_name  which of the model's prompts goes before each text; None: its default
        prompt       a text to put there instead
        normalize    whether vectors have length 1; None: as the model's folder says
        dimensions   the first so many numbers, which then are normalized again if they were
        output_type  float32, float16, int8, uint8 (256 steps over -1 to 1), binary or ubinary
                     (eight signs to a byte)
        stride       read a long text in windows that share so many tokens, and take the mean of
                     their vectors, weighted by their tokens, before it is normalized; a prompt
                     stands in the first window. None: cut it

        Errors as in ``classify``.
        """
        return self._run(
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

    def embed_tokens(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        truncate: bool = True,
    ) -> list[Float32Array]:
        """Each text's last hidden states, float32 (tokens, hidden size), special tokens too."""
        return self._run(embedding.embed_tokens(self._loaded, texts, prompt_name, truncate))

    def embed_sparse(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
    ) -> list[SparseVector]:
        """For each text SPLADE's weights of tokens of the vocabulary, without those that are 0.

        A weight is the maximum over the text's tokens, special ones included, of
        log1p(relu(logit)) (Formal et al. 2021, arXiv:2109.10086), as sentence-transformers'
        SpladePooling and text-embeddings-inference compute it. Needs a masked language model
        that was loaded for it: by its folder's SpladePooling, or with task="embed_sparse".

        Errors as in ``classify``.
        """
        return self._run(
            embedding.embed_sparse(
                self._loaded, texts, prompt_name, prompt, truncate, truncation_direction
            )
        )

    def similarity(
        self,
        first: Iterable[str],
        second: Iterable[str],
        *,
        prompt_name: str | None = None,
    ) -> Float32Array:
        """The cosine of every text of ``first`` with every one of ``second``, float32 (n, m)."""
        return self._run(embedding.similarity(self._loaded, first, second, prompt_name))

    def token_classify(
        self,
        texts: Iterable[str],
        aggregation_strategy: str = "none",
        *,
        ignore_labels: Collection[str] = ("O",),
        stride: int | None = None,
        truncate: bool = True,
    ) -> list[list[Entity]]:
        """For each text: its entities in order, as Transformers' pipeline finds them.

        aggregation_strategy  none (each token), simple, first, average or max
        ignore_labels         labels of entities that are left out
        stride                read a long text in windows that share so many tokens; None: cut it

        Spans are code points and have no white space at their ends. Errors as in ``classify``.
        """
        return self._run(
            verbs.token_classify(
                self._loaded, texts, aggregation_strategy, ignore_labels, stride, truncate
            )
        )

    def fill_mask(
        self,
        texts: Iterable[str],
        top_k: int = TOP_K,
        targets: str | Sequence[str] | None = None,
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
    ) -> list[Fills]:
        """For each text, and each mask in it: the likeliest tokens, as Transformers' pipeline.

        top_k    how many tokens for a mask
        targets  only these tokens; what is no token of the vocabulary counts as its first one

        A text holds the tokenizer's mask token, such as [MASK] or <mask>, at least once; one with
        several is read once for each. Needs a masked language model that was loaded for it, with
        task="fill_mask". Probabilities are over the whole vocabulary, in float32.

        Errors as in ``classify``.
        """
        plans = verbs.fill_mask_plans(
            self._loaded, texts, top_k, targets, truncate, truncation_direction
        )
        return [fills for plan in plans for fills in self._run(plan)]

    def encode(
        self,
        inputs: Iterable[TextOrPair],
        *,
        truncate: bool = True,
        truncation_direction: Direction | None = None,
    ) -> Sequences:
        """The tokenised inputs, packed; ``truncated`` says which were cut."""
        return self._loaded.tokenizer.encode(
            checked_inputs(inputs), truncate=truncate, direction=truncation_direction
        )

    def logits(self, sequences: Sequences) -> Float32Array:
        """The model's output, float32 (n, labels) for a classifier, of what ``encode`` returned."""
        return joined([self._loaded.engine.submit(sequences).result()]).values

    def _run(self, plan: Plan[Result]) -> Result:
        call = Call()
        try:
            return plan.result([piece.result() for piece in plan.submit(call)])
        except BaseException:  # Ctrl-C above all: what nobody waits for would hold up the next call
            call.give_up()
            raise
