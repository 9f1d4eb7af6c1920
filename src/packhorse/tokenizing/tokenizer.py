"""Text in, packed ids out: the tokenizer of one checkpoint.

Nothing here makes a Python object for each text: the fast libraries return
arrays, and the rest is a few array operations a call. Where neither can be
trusted with a checkpoint `tokenizers` serves, many times slower.

A tokenizer may be used from several threads, and after a fork (see
``may_use_threads``). It imports neither torch nor an HTTP server.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NoReturn, SupportsIndex, get_args

import numpy as np
import tokenizers

from packhorse.checkpoint import Checkpoint
from packhorse.errors import (
    CheckpointError,
    ConfigError,
    InternalError,
    ServedError,
    TokenizationError,
    ValidationError,
)
from packhorse.request import BoolArray, Int32Array, Sequences, TextOrPair, bounds_of, concatenate
from packhorse.tokenizing.added_tokens import with_added_tokens
from packhorse.tokenizing.backends import Backend, LibraryFaultError, TokenizersBackend
from packhorse.tokenizing.choice import BackendChoice, chosen_backend
from packhorse.tokenizing.files import read_tokenizer, reads_token_types
from packhorse.tokenizing.inputs import Inputs
from packhorse.tokenizing.offsets import OffsetReader, Spans
from packhorse.tokenizing.overrides import overridden, truncation_side
from packhorse.tokenizing.positions import positions_among_pads
from packhorse.tokenizing.safe_cuts import Direction, Piece, safe_cuts
from packhorse.tokenizing.shadowed import Shadowed
from packhorse.tokenizing.special_tokens import pair_layout, text_layout
from packhorse.tokenizing.truncation import Reader, first_unreadable, longest_first, only_first

__all__ = ["BackendChoice", "Direction", "Tokenizer"]

logger = logging.getLogger(__name__)

PIECE_CHARACTERS = 16_384
"""Of a part of a text: tokenised in some 10 ms by `tokenizers`."""

_DIRECTIONS = get_args(Direction)


class Tokenizer:
    """Turns texts and pairs into ``Sequences``, special tokens and truncation included.

    max_length       the most tokens in a sequence, special tokens included
    truncation_side  the end that is cut off where a call does not say: the checkpoint's
    """

    def __init__(self, checkpoint: Checkpoint, libraries: Shadowed) -> None:
        """Puts loaded parts together; ``Tokenizer.load`` is what to call."""
        self.max_length = checkpoint.max_length
        self.folder = checkpoint.transformer
        self.truncation_side = truncation_side(checkpoint.transformer)
        self._libraries = libraries
        self._architecture = checkpoint.architecture
        self._text_layout = text_layout(self.library)
        self._pair_layout = pair_layout(self.library)
        self._has_segments = reads_token_types(checkpoint)
        self._cuts = safe_cuts(self.library)
        self._reader = Reader(self._cuts)
        self._check_fit()

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        backend: BackendChoice = "auto",
        parallel: bool | None = None,
        shadow_share: float = 0.0,
    ) -> Tokenizer:
        """The tokenizer of a checkpoint, from its tokenizer.json.

        backend       auto: nanotoken (WordPiece) or gigatoken (BPE) if it gives the ids of
                      `tokenizers` to about 200 probes, else `tokenizers`
        parallel      whether a library may use its thread pool; None: yes, except in a worker
                      of ``multiprocessing``. In a forked child it never does.
        shadow_share  the share of texts, 0 to 1, to encode again with `tokenizers` and compare;
                      the first difference makes `tokenizers` serve from then on

        Raises CheckpointError when the file is missing, broken, or leaves no
        room for text; ConfigError for an option that is wrong, a fast library
        where it cannot serve included.
        """
        if backend not in get_args(BackendChoice):
            known = ", ".join(get_args(BackendChoice))
            raise ConfigError(f"tokenizer {backend!r} is not one of {known}")
        if not 0.0 <= shadow_share <= 1.0:
            raise ConfigError(f"shadow_share {shadow_share} must be from 0 to 1")
        folder = checkpoint.transformer
        text = overridden(read_tokenizer(checkpoint.tokenizer_file), folder)
        text = with_added_tokens(text, folder)
        reference = TokenizersBackend(text, parallel)
        serving, reason = chosen_backend(backend, text, reference, parallel)
        logger.info("tokenizer: %s serves: %s", serving.name, reason)
        return cls(checkpoint, Shadowed(serving, reference, reason, shadow_share))

    @property
    def backend(self) -> str:
        """The library that serves: nanotoken, gigatoken or tokenizers."""
        return self._libraries.serving.name

    @property
    def backend_reason(self) -> str:
        """Why that one serves."""
        return self._libraries.reason

    @property
    def shadow_counts(self) -> tuple[int, int]:
        """Texts that `tokenizers` encoded again to compare, and those whose ids differed."""
        return self._libraries.checked, self._libraries.differences

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object, for offsets, decoding and the names of tokens.

        Every thread shares it: never turn on its truncation or padding.
        """
        return self._libraries.reference.library

    def encode(
        self,
        inputs: Sequence[TextOrPair],
        *,
        truncate: bool = True,
        direction: Direction | None = None,
        first_only: bool = False,
        most: int | None = None,
        most_of_second: int | None = None,
    ) -> Sequences:
        """Each text or pair as a sequence of at most ``max_length`` tokens, or ``most`` if given.

        What is too long is cut at its ``direction`` end, None for the
        checkpoint's; of a pair the longer text first, or with ``first_only``
        the first alone. An empty text is special tokens only. Before that the second text of a
        pair is cut to ``most_of_second`` tokens, None for all.

        Raises ValidationError for what is neither text nor pair, for an unknown
        direction, and for what is too long if not ``truncate``; TokenizationError
        for what is not Unicode and for ids that the model has no embedding for.
        Both name the input and never quote it.
        """
        direction = self.truncation_side if direction is None else direction
        if direction not in _DIRECTIONS:
            raise ValidationError("the truncation direction must be right or left")
        checked = Inputs.checked(inputs, truncate, direction, first_only, most, most_of_second)
        try:
            return self._fitted(self._libraries.read(self._sequences, checked))
        except LibraryFaultError as fault:
            raise _explained(fault, checked.all) from None

    def encode_with_offsets(
        self, texts: Sequence[str], *, truncate: bool = True, stride: int | None = None
    ) -> Spans:
        """Each text as a sequence, and where in it every token stands.

        What is too long loses its end; with a ``stride`` it becomes several sequences that share
        so many tokens with their neighbours. Raises as ``encode`` does.
        """
        room = self.max_length - self._text_layout.num_tokens
        if stride is not None and not (isinstance(stride, SupportsIndex) and 0 <= stride < room):
            raise ValidationError(
                f"`stride` is {stride}; windows of this model can share 0 to {room - 1}"
            )
        reader = OffsetReader(self.library, self._text_layout, self.max_length, self._cuts)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValidationError(f"inputs[{i}] must be a text, not a {type(text).__name__}")
        try:
            spans = reader.read(texts, stride)
        except LibraryFaultError as fault:
            raise _explained(fault, texts) from None
        if not truncate and spans.sequences.truncated.any():
            raise ValidationError(
                f"inputs[{int(spans.text_of[spans.sequences.truncated.argmax()])}] has more than "
                f"{self.max_length} tokens: shorten it, set truncate to true, or read it in windows"
            )
        return dataclasses.replace(spans, sequences=self._fitted(spans.sequences))

    def pieces(self, text: str) -> Iterator[Piece]:
        """The text in parts, each soon tokenised, whose tokens are those of the text.

        In one part where it is short, or where no place is known to be safe to cut at.
        """
        if self._cuts is None:
            return iter((Piece(0, 0, len(text)),))
        return self._cuts.pieces(text, PIECE_CHARACTERS)

    @property
    def special_ids(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after every text."""
        return self._text_layout.before.tolist(), self._text_layout.after.tolist()

    def from_ids(
        self,
        lists: Sequence[Sequence[int]],
        *,
        truncate: bool = True,
        direction: Direction | None = None,
        most: int | None = None,
    ) -> Sequences:
        """Ids as the model shall see them: no special tokens are added, and what is cut off at the
        ``direction`` end, None for the checkpoint's, may be one. ``most`` as in ``encode``.

        Raises ValidationError or TokenizationError naming the list at fault.
        """
        most = self.max_length if most is None else min(most, self.max_length)
        is_left = (self.truncation_side if direction is None else direction) == "left"
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        too_long = lengths > most
        if not truncate and too_long.any():
            i = int(too_long.argmax())
            raise ValidationError(f"inputs[{i}] has {lengths[i]} tokens; {most} fit")
        for i, ids in enumerate(lists):
            if not ids or not 0 <= min(ids) <= max(ids) < self._architecture.vocab_size:
                raise TokenizationError(
                    f"inputs[{i}] must be token ids from 0 to {self._architecture.vocab_size - 1}"
                )
        kept = [ids[-most:] if is_left else ids[:most] for ids in lists]
        bounds = bounds_of(np.minimum(lengths, most))
        ids_in_order = np.fromiter(chain.from_iterable(kept), np.int32, bounds[-1])
        return self._fitted(Sequences(ids_in_order, bounds, too_long))

    def _sequences(self, backend: Backend, inputs: Inputs) -> Sequences:
        """The batch, tokenised and truncated; ids not yet compared with the model."""
        if inputs.is_pair is None:
            return self._texts(backend, inputs, range(len(inputs.all)))
        texts, pairs = (np.flatnonzero(kind).tolist() for kind in (~inputs.is_pair, inputs.is_pair))
        if not texts:
            return self._pairs(backend, inputs, pairs)
        if not pairs:
            return self._texts(backend, inputs, texts)
        parts = [self._texts(backend, inputs, texts), self._pairs(backend, inputs, pairs)]
        return concatenate(parts).take(np.argsort(texts + pairs))

    def _texts(self, backend: Backend, inputs: Inputs, places: Sequence[int]) -> Sequences:
        texts = inputs.all if inputs.is_pair is None else [inputs.all[i] for i in places]
        most = self._most(inputs, self._text_layout.num_tokens)
        rows, whole = self._reader.rows(backend, texts, True, most, inputs.direction)
        if rows.bounds[-1] <= most:  # all of them together: spares one text 3 µs
            return Sequences(rows.ids, rows.bounds, np.zeros(len(texts), np.bool_))
        lengths = rows.lengths
        too_long = lengths > most
        if not np.count_nonzero(too_long):
            return Sequences(rows.ids, rows.bounds, too_long)
        if not inputs.truncate:
            self._refuse(inputs, places, lengths, whole)
        rows = self._text_layout.trimmed(rows, most, inputs.direction)
        return Sequences(rows.ids, rows.bounds, too_long)

    def _pairs(self, backend: Backend, inputs: Inputs, places: Sequence[int]) -> Sequences:
        layout = self._pair_layout
        if layout is None or self.max_length < layout.num_tokens:
            raise ValidationError(
                f"inputs[{inputs.first + places[0]}] is a pair, which this model cannot read: "
                + ("it has no template for pairs" if layout is None else "its sequences are short")
            )
        most = self._most(inputs, layout.num_tokens)
        room = most - layout.num_tokens
        texts = [text for i in places for text in inputs.all[i]]
        rows, whole = self._reader.rows(backend, texts, False, room, inputs.direction)
        counts = rows.lengths.reshape(-1, 2)
        cut = np.zeros(len(places), np.bool_)
        if inputs.most_of_second is not None:
            cut = counts[:, 1] > inputs.most_of_second
            counts[:, 1] = np.minimum(counts[:, 1], inputs.most_of_second)
        both_whole = None if whole is None else whole[0::2] & whole[1::2]
        lengths = counts.sum(axis=1, dtype=np.int32) + np.int32(layout.num_tokens)
        if not inputs.truncate and lengths.max(initial=0) > most:
            self._refuse(inputs, places, lengths, both_whole)
        if inputs.first_only:
            kept = only_first(counts[:, 0], counts[:, 1], room)
            inputs.check_first(places, counts[:, 0], kept[0])
        else:
            if room % 2 and both_whole is not None:  # it matters which is longer, by how much not
                for i in np.flatnonzero((counts > room).all(axis=1) & ~both_whole).tolist():
                    pair = texts[2 * i : 2 * i + 2]
                    counts[i] = self._reader.ranked_counts(backend, pair, inputs.direction)
            kept = longest_first(counts[:, 0], counts[:, 1], room)
        rows = layout.joined(rows, kept, inputs.direction)
        return Sequences(
            rows.ids,
            rows.bounds,
            truncated=(lengths > most) | cut,
            segment_starts=layout.segment_starts(kept[0]) if self._has_segments else None,
        )

    def _most(self, inputs: Inputs, special: int) -> int:
        """Tokens that a sequence of these may have. Raises ValidationError where only the
        ``special`` ones would fit."""
        if inputs.most is None:
            return self.max_length
        if inputs.most <= special:
            raise ValidationError(
                f"{inputs.most} tokens leave no room for text beside {special} special tokens"
            )
        return min(inputs.most, self.max_length)

    def _refuse(
        self, inputs: Inputs, places: Sequence[int], lengths: Int32Array, whole: BoolArray | None
    ) -> NoReturn:
        """Raises ValidationError for the first input that is too long."""
        most = self._most(inputs, 0)
        i = int(np.argmax(lengths > most))
        is_count = whole is None or whole[i]
        found = f"{lengths[i]}" if is_count else f"more than {most}"
        raise ValidationError(
            f"inputs[{inputs.first + places[i]}] has {found} tokens, special tokens included, and "
            f"the limit is {most}: shorten it, or set truncate to true to have it cut"
        )

    def _fitted(self, sequences: Sequences) -> Sequences:
        """With explicit positions where the model needs them.

        Raises TokenizationError for an id that the embedding table does not
        have, and for a text without tokens where no special tokens are added.
        """
        ids, model = sequences.input_ids, self._architecture
        if self._text_layout.num_tokens == 0 and not (lengths := sequences.lengths).all():
            raise TokenizationError(f"inputs[{int(np.argmin(lengths))}] has no tokens")
        # count_nonzero, as after numpy's any() and max() nanotoken has been seen to run a third
        # slower: it seems that they leave the vector registers in a state that costs SSE code time.
        if np.count_nonzero(ids >= model.vocab_size):
            token = int(np.argmax(ids >= model.vocab_size))
            place = int(np.searchsorted(sequences.cu_seqlens, token, side="right")) - 1
            raise TokenizationError(
                f"inputs[{place}] has a token with id {ids[token]}, and the model's embedding "
                f"table ends at {model.vocab_size - 1}: its tokenizer has tokens added to it"
            )
        if model.first_position > 0 and (pads := ids == model.first_position - 1).any():
            positions = positions_among_pads(sequences.cu_seqlens, pads, model.first_position - 1)
            return dataclasses.replace(sequences, position_ids=positions)
        return sequences

    def _check_fit(self) -> None:
        """Warns of tokens beyond the embedding table.

        Raises CheckpointError when the length limit leaves no room for text.
        """
        if self.max_length <= self._text_layout.num_tokens:
            raise CheckpointError(
                f"a length limit of {self.max_length} tokens leaves no room for text beside the "
                f"tokenizer's {self._text_layout.num_tokens} special tokens"
            )
        if self._text_layout.num_tokens == 0:
            logger.warning(
                "the tokenizer puts no special tokens around a text (its post_processor): if the "
                "model was trained with them, save its tokenizer anew with Transformers"
            )
        highest = max(self.library.get_vocab().values())
        if highest >= self._architecture.vocab_size:
            logger.warning(
                "the tokenizer has ids up to %d, the embedding table up to %d: "
                "texts with tokens beyond it will be refused",
                highest,
                self._architecture.vocab_size - 1,
            )


def _explained(fault: LibraryFaultError, inputs: Sequence[TextOrPair]) -> ServedError:
    """What to answer when no library could tokenise the inputs."""
    unreadable = first_unreadable(inputs)
    if unreadable is None:
        return InternalError(f"the tokenizer failed: {fault}")
    return TokenizationError(
        f"inputs[{unreadable}] is not Unicode text: it holds half of a surrogate pair"
    )
