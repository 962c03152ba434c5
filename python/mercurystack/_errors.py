"""What calls fail with: an errno and the library's text, as one exception."""

from __future__ import annotations

import errno
import os


class MercuryError(OSError):
    """A call or an operation failed. `errno` is one of those that docs/api.md lists, `strerror` says what was
    wrong and what to do."""


class MercuryTimeoutError(MercuryError, TimeoutError):
    """The time that the caller gave has passed. An operation goes on, and can be waited for again."""


class JobFailedError(MercuryError, ConnectionError):
    """The job has failed for all its members: a member left, was lost, stalled, or never came; or the daemon has gone,
    or is not there. Every later call on the job fails likewise; close it."""


# What a job fails of, in an operation's status as in a call's (docs/api.md, "Errors").
_JOB_FAILED = frozenset((errno.ECONNRESET, errno.EHOSTDOWN, errno.ETIME, errno.EPIPE))


def error_of(code: int, text: str) -> MercuryError:
    """The exception for a negative errno."""
    number = -code
    kind: type[MercuryError] = MercuryError
    if number == errno.ETIMEDOUT:
        kind = MercuryTimeoutError
    elif number in _JOB_FAILED:
        kind = JobFailedError
    return kind(number, text or os.strerror(number))
