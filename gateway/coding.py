"""Undoes the compression of an engine's answer, piece by piece.

Engines are asked for plain bytes. One that compresses all the same is decoded here, so that usage
can be read and every client, whatever it accepts, gets the text the engine meant.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol

import brotli
import zstandard


class Decoder(Protocol):
    """Takes pieces, gives what they mean."""

    def decode(self, data: bytes) -> bytes: ...


class BadCoding(ValueError):
    """The bytes are not what the engine said they are."""


class _Zlib:
    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    def decode(self, data: bytes) -> bytes:
        try:
            return self._decoder.decompress(data)
        except zlib.error as error:
            raise BadCoding(str(error)) from None


class _Deflate:
    """Deflate as the standard has it, or bare as some servers send it."""

    def __init__(self) -> None:
        self._decoder: _Zlib | None = None

    def decode(self, data: bytes) -> bytes:
        if self._decoder is None and data:
            # A zlib stream begins with 0x78 (windows of 32 KiB) or another method-8 byte.
            is_wrapped = data[0] & 0x0F == 8
            self._decoder = _Zlib(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        return self._decoder.decode(data) if self._decoder else b""


class _Brotli:
    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    def decode(self, data: bytes) -> bytes:
        try:
            decoded: bytes = self._decoder.process(data)
        except brotli.error as error:
            raise BadCoding(str(error)) from None
        return decoded


class _Zstd:
    def __init__(self) -> None:
        self._decoder = zstandard.ZstdDecompressor().decompressobj()

    def decode(self, data: bytes) -> bytes:
        try:
            return self._decoder.decompress(data)
        except zstandard.ZstdError as error:
            raise BadCoding(str(error)) from None


_DECODERS: dict[bytes, Callable[[], Decoder]] = {
    b"gzip": lambda: _Zlib(zlib.MAX_WBITS | 16),
    b"x-gzip": lambda: _Zlib(zlib.MAX_WBITS | 16),
    b"deflate": _Deflate,
    b"br": _Brotli,
    b"zstd": _Zstd,
}


def decoder(encoding: bytes | None) -> Decoder | None:
    """Return what decodes a Content-Encoding; None where nothing is to be done, or can be."""
    make = _DECODERS.get((encoding or b"").strip().lower())
    return make() if make else None
