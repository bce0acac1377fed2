"""What the Hub, its client and the network raise, as one line with the remedy."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

# `HTTPError` is of the HTTP client below huggingface_hub: httpx in its version 1, httpx2 in version 2.
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError

from hf_encoders.errors import first_line


class PublishError(RuntimeError):
    """The Hub, or the way to it, refused; the message is one line with the remedy and says what is on the Hub now."""


@contextmanager
def one_line(repo_id: str, endpoint: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line with the remedy."""
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise PublishError(_login()) from error
    except HfHubHTTPError as error:
        raise PublishError(_refusal(error, repo_id)) from error
    except (HTTPError, OSError) as error:
        raise PublishError(
            f"the Hub at {endpoint} does not answer ({first_line(error)}): check the connection and try again."
        ) from error
    except PublishError:
        raise
    except RuntimeError as error:  # what huggingface_hub and hf_xet make of an upload that failed
        raise PublishError(
            f"a file could not be uploaded ({first_line(error)} {first_line(error.__cause__ or error)}): try again."
        ) from error
    except json.JSONDecodeError as error:
        raise PublishError(f"the Hub at {endpoint} gave an answer that is none ({error}): try again later.") from error
    except ValueError as error:
        if not str(error).startswith("Invalid metadata"):
            raise
        raise PublishError(f"the Hub refused the model card: {' '.join(str(error).split())}") from error


def _refusal(error: HfHubHTTPError, repo_id: str) -> str:
    status = error.response.status_code
    if status == 401:
        return _login()
    if status == 403:
        return f"your token may not write to {repo_id}: use one with the permission to write, of an account that may."
    if status in (409, 412):
        return f"{repo_id} was changed by somebody else in the meantime: look at it, and publish again."
    said = " ".join((error.server_message or first_line(error)).split())
    # Of the refusals, two are of the moment: too slow, too many requests (RFC 9110, 15.5.9, and RFC 6585, 4).
    is_refused = 400 <= status < 500 and status not in (408, 429)
    return f"the Hub answered {status} ({said}): {'mend what it names' if is_refused else 'try again later'}."


def _login() -> str:
    return "you are not logged in to the Hub: run `hf auth login`, or set HF_TOKEN to a token that may write."
