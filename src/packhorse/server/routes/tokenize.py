"""POST /tokenize and /decode, in the shapes of text-embeddings-inference."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import tokenizers

from packhorse.errors import EmptyRequestError, TokenizationError
from packhorse.server.model_route import Asking, ModelRoute, encode_json
from packhorse.server.schemas import texts_or_ids
from packhorse.tokenizing.backends import LibraryFaultError, guarded
from packhorse.tokenizing.truncation import first_unreadable


class TokenizeRequest(msgspec.Struct):
    """``POST /tokenize``."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeRequest(msgspec.Struct):
    """``POST /decode``."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True


class Tokenize(ModelRoute):
    """``POST /tokenize``."""

    name = "tokenize"
    _decoder = msgspec.json.Decoder(TokenizeRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The tokens of each text, uncut; in a thread, so that a long text stops no other."""
        request = self.read(self._decoder, asking)
        texts = [str(text) for text in texts_or_ids(request.inputs, "inputs")]
        self.check_room(len(texts))
        sentence = self.checkpoint.sentence
        if sentence is not None:
            prompt = sentence.prompt_named(request.prompt_name)
            texts = [sentence.text_with_prompt(text, prompt) for text in texts]
        return await asyncio.to_thread(self._tokens, texts, request.add_special_tokens)

    def _tokens(self, texts: list[str], special: bool) -> bytes:
        found = []
        for text, encoding in zip(texts, self._encodings(texts, special), strict=True):
            rows = zip(
                encoding.ids,
                encoding.tokens,
                encoding.special_tokens_mask,
                encoding.offsets,
                strict=True,
            )
            found.append([_token(text, *row) for row in rows])
        return encode_json(found)

    def _encodings(self, texts: list[str], special: bool) -> list[tokenizers.Encoding]:
        if (unreadable := first_unreadable(texts)) is not None:
            raise TokenizationError(f"inputs[{unreadable}] is not Unicode text")
        encode_batch = self.service.tokenizer.library.encode_batch
        try:
            # Of a batch, which frees the interpreter's lock: one text would keep it to its end.
            return guarded("tokenizers", lambda: encode_batch(texts, add_special_tokens=special))
        except LibraryFaultError as fault:
            raise TokenizationError(f"the inputs cannot be tokenised: {fault}") from None


class Decode(ModelRoute):
    """``POST /decode``."""

    name = "decode"
    _decoder = msgspec.json.Decoder(DecodeRequest)

    async def answer(self, asking: Asking) -> bytes:
        """The text of each list of ids."""
        request = self.read(self._decoder, asking)
        if not request.ids:
            raise EmptyRequestError("`ids` is an empty list; send [1, 2] or [[1, 2], [3]]")
        lists = [one if isinstance(one, list) else [one] for one in request.ids]
        if all(isinstance(one, int) for one in request.ids):
            lists = [[one for one in request.ids if isinstance(one, int)]]
        self.check_room(len(lists))
        return await asyncio.to_thread(self._decoded, lists, request.skip_special_tokens)

    def _decoded(self, lists: list[list[int]], skip_special: bool) -> bytes:
        library = self.service.tokenizer.library
        most = library.get_vocab_size(with_added_tokens=True)
        for ids in lists:
            for number in ids:
                if not 0 <= number < most:
                    raise TokenizationError(f"{number} is no token id; there are 0 to {most - 1}")
        return encode_json(library.decode_batch(lists, skip_special_tokens=skip_special))


def _token(
    text: str, number: int, name: str, special: int, place: tuple[int, int]
) -> dict[str, Any]:
    start, stop = place
    if special:
        return {"id": number, "text": name, "special": True, "start": None, "stop": None}
    return {
        "id": number,
        "text": text[start:stop],
        "special": False,
        "start": start,
        "stop": stop,
    }
