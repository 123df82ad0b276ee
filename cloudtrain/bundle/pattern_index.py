"""Finds the few patterns of an ignore file that can match a path, so that the time for a path does not grow with the
number of patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cloudtrain.bundle.patterns import Key, Pattern, Where


class PatternIndex:
    """The patterns by their keys. Of a pattern's keys, the index uses the one that the fewest patterns have."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        keys = [list(pattern.keys()) for pattern in patterns]
        frequency = Counter(key for each in keys for key in each)
        self._keyless: list[int] = []
        self._whole: dict[Key, list[int]] = {}
        self._parts: dict[tuple[bool, Where, int], dict[bytes, list[int]]] = {}
        for number, each in enumerate(keys):
            if not each:
                self._keyless.append(number)
                continue
            key = min(each, key=frequency.__getitem__)
            if key.where is Where.WHOLE:
                self._whole.setdefault(key, []).append(number)
            else:
                part = self._parts.setdefault((key.by_name, key.where, len(key.text)), {})
                part.setdefault(key.text, []).append(number)

    def candidates(self, path: bytes) -> list[int]:
        """Return the numbers of the patterns that can match the path, sorted. All others do not match it."""
        name = path[path.rfind(b"/") + 1 :]
        found = [*self._keyless, *self._whole.get(Key(True, Where.WHOLE, name), ())]
        found += self._whole.get(Key(False, Where.WHOLE, path), ())
        for (by_name, where, length), numbers in self._parts.items():
            text = name if by_name else path
            last = len(text) - length
            if where is Where.START:
                found += numbers.get(text[:length], ())
            elif where is Where.END:
                found += numbers.get(text[last:], ()) if last >= 0 else ()
            else:
                for start in range(last + 1):
                    found += numbers.get(text[start : start + length], ())
        return sorted(set(found))
