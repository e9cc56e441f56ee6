"""Replace attributes temporarily."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, **attributes: Any) -> Iterator[None]:
    """Set attributes of a module or an object within the context, and restore them afterwards."""
    namespace = vars(owner)
    originals = {name: namespace[name] for name in attributes if name in namespace}
    namespace.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del namespace[name]
        namespace.update(originals)
