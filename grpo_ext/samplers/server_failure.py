"""The reason why a request to a vLLM server failed, in a form that all ranks can share."""

from dataclasses import dataclass
from typing import Self

from grpo_ext.common.http import StatusError
from grpo_ext.common.untrusted import one_line

MAX_MESSAGE = 300  # characters
# Statuses from 400 to 499 that mean that the server is busy, so the same request can succeed later.
BUSY_STATUSES = (408, 425, 429)


@dataclass(frozen=True)
class ServerFailure:
    """Describes why a request failed.

    Args:
        message: one short line for the user.
        status: the HTTP status of the response; `None` if the request failed for another reason.
    """

    message: str
    status: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Create a failure with the type, the message and, if any, the HTTP status of an error.

        A full stop at the end of the message is removed, because other messages quote the message.
        """
        text = one_line(" ".join(str(error).split())).removesuffix(".")
        status = error.status if isinstance(error, StatusError) else None
        return cls(f"{type(error).__name__}: {text[:MAX_MESSAGE]}", status)

    @property
    def refused(self) -> bool:
        """Whether the server rejected the request itself, so that a retry would fail again.

        This is the case for statuses from 400 to 499, except those for a busy server.
        """
        if self.status is None or self.status in BUSY_STATUSES:
            return False
        return 400 <= self.status < 500
