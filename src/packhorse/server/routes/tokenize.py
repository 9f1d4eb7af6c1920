"""POST /tokenize and /decode, in the shapes of text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import tokenizers

from packhorse.errors import EmptyRequestError, TokenizationError, ValidationError
from packhorse.server.model_route import Asking, ModelRoute, characters_of, encode_json
from packhorse.server.schemas import texts_or_ids
from packhorse.server.service import Service
from packhorse.tokenizing.backends import LibraryFaultError, guarded
from packhorse.tokenizing.truncation import first_unreadable

LISTED_TOKENS = 4096
"""How many tokens of a text are made into objects and written at once: milliseconds."""


class TokenizeRequest(msgspec.Struct):
    """``POST /tokenize``."""

    inputs: str | list[str]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class DecodeRequest(msgspec.Struct):
    """``POST /decode``."""

    ids: list[int | list[int]]
    skip_special_tokens: bool | None = None


class Token(msgspec.Struct):
    """A token, and where it stands in the text (code points); null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Tokenize(ModelRoute):
    """``POST /tokenize``."""

    name = "tokenize"
    answers = list[list[Token]]
    _decoder = msgspec.json.Decoder(TokenizeRequest)

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        tokenizer = service.tokenizer
        before, after = (
            [
                encode_json(Token(one, str(tokenizer.library.id_to_token(one)), True, None, None))
                for one in ids
            ]
            for ids in tokenizer.special_ids
        )
        self._special = before, after

    async def answer(self, asking: Asking) -> bytes:
        """The tokens of each text, uncut; in a thread, so that a long text stops no other."""
        request = self.read(self._decoder, asking)
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        sentence = self.checkpoint.sentence
        if sentence is not None:
            prompt = sentence.prompt_named(request.prompt_name)
            texts = [sentence.text_with_prompt(text, prompt) for text in texts]
        special = request.add_special_tokens is not False
        return await self.worked(
            asking, texts, characters_of(texts), lambda: self._listed(asking, texts, special)
        )

    def _listed(self, asking: Asking, texts: list[str], special: bool) -> bytes:
        """The answer. Raises TokenizationError or ValidationError."""
        if (unreadable := first_unreadable(texts)) is not None:
            raise TokenizationError(f"inputs[{unreadable}] is not Unicode text")
        before, after = self._special if special else ([], [])
        lists, size = [], 0
        for text in texts:
            tokens = list(before)
            for piece in self._pieces(text):
                tokens.append(piece)
                size += len(piece)
                if asking.is_over:
                    return b""
                if size > self.answer_limit:
                    raise ValidationError(
                        f"the answer has more than {self.answer_limit} bytes (--answer-limit): "
                        "send fewer or shorter texts in one request"
                    )
            lists.append(b"[" + b",".join([*tokens, *after]) + b"]")
        return b"[" + b",".join(lists) + b"]"

    def _pieces(self, text: str) -> Iterator[bytes]:
        """The text's own tokens as JSON objects with commas between, a few thousand at a time.

        Other threads get their turn in between: what a call of a library makes, it makes at once.
        Where no place is known to be safe to cut at, all of the text is one encoding, but no more
        than a few thousand of its tokens are objects at any moment.
        """
        for before, start, stop in self.service.tokenizer.pieces(text):
            context, whole = self._encodings([text[before:start], text[before:stop]])
            ids = whole.ids
            for first in range(len(context), len(ids), LISTED_TOKENS):
                tokens = []
                for place, number in enumerate(ids[first : first + LISTED_TOKENS], first):
                    a, b = whole.token_to_chars(place)  # type: ignore[misc]  # its stub: None
                    a, b = before + a, before + b
                    tokens.append(Token(number, text[a:b], False, a, b))
                yield encode_json(tokens)[1:-1]

    def _encodings(self, texts: list[str]) -> list[tokenizers.Encoding]:
        encode_batch = self.service.tokenizer.library.encode_batch
        try:
            # Of a batch, which frees the interpreter's lock: one text would keep it to its end.
            return guarded("tokenizers", lambda: encode_batch(texts, add_special_tokens=False))
        except LibraryFaultError as fault:
            raise TokenizationError(f"the inputs cannot be tokenised: {fault}") from None


class Decode(ModelRoute):
    """``POST /decode``."""

    name = "decode"
    answers = list[str]
    _decoder = msgspec.json.Decoder(DecodeRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The text of each list of ids."""
        request = self.read(self._decoder, asking)
        if not request.ids:
            raise EmptyRequestError("`ids` is an empty list; send [1, 2] or [[1, 2], [3]]")
        lists = [one if isinstance(one, list) else [one] for one in request.ids]
        if all(isinstance(one, int) for one in request.ids):
            lists = [[one for one in request.ids if isinstance(one, int)]]
        skip_special = request.skip_special_tokens is not False
        return await self.worked(
            asking, lists, sum(map(len, lists)), lambda: self._decoded(lists, skip_special)
        )

    def _decoded(self, lists: list[list[int]], skip_special: bool) -> bytes:
        library = self.service.tokenizer.library
        most = library.get_vocab_size(with_added_tokens=True)
        for ids in lists:
            for number in ids:
                if not 0 <= number < most:
                    raise TokenizationError(f"{number} is no token id; there are 0 to {most - 1}")
        return encode_json(library.decode_batch(lists, skip_special_tokens=skip_special))
