"""The reason why a request to a vLLM server failed, in a form that all ranks can share."""

from dataclasses import dataclass
from typing import Self

from grpo_ext.common.http import StatusError
from grpo_ext.common.untrusted import one_line

MAX_MESSAGE = 300  # characters
# Statuses from 400 to 499 after which the same request can succeed: the server is busy.
BUSY_STATUSES = (408, 425, 429)


@dataclass(frozen=True)
class ServerFailure:
    """A failed request.

    Args:
        message: one short line for the user.
        status: the HTTP status of the response; `None` for an error other than a bad status.
    """

    message: str
    status: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return a failure with the type and message of `error`, and its HTTP status if any.

        A full stop at the end of the message is left out, because sentences quote it.
        """
        text = one_line(" ".join(str(error).split())).removesuffix(".")
        status = error.status if isinstance(error, StatusError) else None
        return cls(f"{type(error).__name__}: {text[:MAX_MESSAGE]}", status)

    @property
    def refused(self) -> bool:
        """Whether the server rejected the request itself (4xx, except the codes for a busy server).

        A retry would fail again.
        """
        if self.status is None or self.status in BUSY_STATUSES:
            return False
        return 400 <= self.status < 500
