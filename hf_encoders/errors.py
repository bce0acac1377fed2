"""How an error of another library is told to the user."""


def first_line(error: BaseException) -> str:
    r"""What an error says, in one line; its kind where it says nothing.

    >>> first_line(ValueError("weights are missing\nTraceback ...")), first_line(TimeoutError())
    ('weights are missing', 'TimeoutError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
