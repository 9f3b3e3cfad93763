"""KV pages without an executor: bytes that follow from the tokens before and in a page, so a wrong page shows."""

from __future__ import annotations

import hashlib

import numpy as np

PAGE_SIZE = 4
PAGE_BYTES = 512


def contents(namespace: str, token_ids: list[int], page_index: int) -> np.ndarray:
    """What page `page_index` of a sequence has to hold: uint8 [PAGE_BYTES]"""
    prefix = repr((namespace, list(token_ids[: (page_index + 1) * PAGE_SIZE]))).encode()
    return np.frombuffer(hashlib.shake_256(prefix).digest(PAGE_BYTES), np.uint8)


class PageMemory:
    page_size = PAGE_SIZE
    page_bytes = PAGE_BYTES
    arithmetic_id = "fake"

    def __init__(self, num_pages: int = 64) -> None:
        self.pages = np.zeros((num_pages, PAGE_BYTES), np.uint8)

    def read_page(self, page_id: int) -> np.ndarray:
        return self.pages[page_id].copy()

    def write_page(self, page_id: int, data: np.ndarray) -> None:
        self.pages[page_id] = data

    def fill(self, page_id: int, namespace: str, token_ids: list[int], page_index: int) -> None:
        self.pages[page_id] = contents(namespace, token_ids, page_index)
