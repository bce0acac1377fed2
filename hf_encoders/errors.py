"""How an error of another library is told to the user."""

import errno
import os


def first_line(error: BaseException) -> str:
    r"""What an error says, in one line; its kind where it says nothing.

    >>> first_line(ValueError("weights are missing\nTraceback ...")), first_line(TimeoutError())
    ('weights are missing', 'TimeoutError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# A disk that is full or closed, which comes as errors of many classes: libraries in Rust have their own.
_OF_THE_DISK = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES))


def problem_of_the_disk(error: BaseException) -> str | None:
    """What an error, or one that it was raised from, says of a full or closed disk; `None` if nothing.

    >>> problem_of_the_disk(Exception("No space left on device (os error 28)"))
    'No space left on device (os error 28)'
    >>> problem_of_the_disk(OSError(errno.EROFS, os.strerror(errno.EROFS), "out/vocab.txt"))
    "[Errno 30] Read-only file system: 'out/vocab.txt'"
    >>> problem_of_the_disk(KeyError("No space left on device")), problem_of_the_disk(FileNotFoundError(2, "No such"))
    (None, None)
    """
    while error is not None:
        is_of_python = isinstance(error, (LookupError, TypeError, ArithmeticError, AssertionError))
        if not is_of_python and any(reason in str(error) for reason in _OF_THE_DISK):
            return first_line(error)
        error = error.__cause__ or error.__context__
    return None
