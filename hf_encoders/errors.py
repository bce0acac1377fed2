"""Errors of other libraries in one line."""


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message, or its type if the message is empty.

    >>> first_line(ValueError("weights are missing\nTraceback ...")), first_line(TimeoutError())
    ('weights are missing', 'TimeoutError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
