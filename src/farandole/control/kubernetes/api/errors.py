"""The errors of requests to the API server.

ApiError (Exception)      the API server refused, or could not be reached
├── NotFound              there is no such object, or no such kind
│   └── NoSuchKind        the server does not know the kind, perhaps not yet; the objects may exist
├── Conflict              the object was changed meanwhile, or exists already
├── Gone                  the version from which a watch was to continue is no longer known (410)
├── Refused               this object cannot be created as it is: quota, admission, rights, validity
└── Unavailable           an outage: no answer, an internal error of the server, or too many requests
    ├── NotSent           there was no connection, so the server knows nothing of the request
    └── Silent            no data has arrived within the timeout
"""

from __future__ import annotations

from farandole.errors import Picklable


class ApiError(Picklable, Exception):
    """The API server refused, or could not be reached.

    Attributes:
        code: the HTTP status code; 0 if there was no answer.
        retry_after: seconds after which the server allows the next request; None: not given.
    """

    def __init__(self, code: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class NotFound(ApiError):
    """There is no such object, or no such kind."""


class NoSuchKind(NotFound):
    """The server does not know the kind: it is not installed, or the server is just starting."""


class Conflict(ApiError):
    """The object was changed meanwhile, or exists already."""


class Gone(ApiError):
    """The version from which a watch was to continue is no longer known: everything must be listed again."""


class ObjectRefused(ApiError):
    """The object cannot be created as it is."""


class Unavailable(ApiError):
    """There was no answer, or one without a statement about the object."""


class NotSent(Unavailable):
    """There was no connection, so the server knows nothing of the request."""


class Silent(Unavailable):
    """No data has arrived within the timeout."""


def from_answer(code: int, message: str, retry_after: float | None = None) -> ApiError:
    """Return the error that an answer of the API server represents."""
    # The first text is that of a server that knows the group, the second that of one that does not.
    if code == 404 and ("could not find the requested resource" in message or "page not found" in message):
        return NoSuchKind(code, message, retry_after)
    kinds = {404: NotFound, 409: Conflict, 410: Gone, 429: Unavailable, 401: Unavailable}
    kind = kinds.get(code, ObjectRefused if 400 <= code < 500 else Unavailable)
    return kind(code, message, retry_after)


def reason_of(error: ApiError) -> str:
    """Return why an object could not be created, as a reason of the condition Blocked."""
    text = str(error)
    if isinstance(error, Conflict):
        return "NameTaken"
    if isinstance(error, NotFound):
        return "KindMissing"
    if "being terminated" in text:
        return "NamespaceTerminating"
    if "exceeded quota" in text or ("must specify" in text and "quota" in text):
        return "QuotaExceeded"
    if "admission webhook" in text or "ValidatingAdmissionPolicy" in text or "PodSecurity" in text:
        return "AdmissionRefused"
    if error.code == 403:
        # The text of the authorizer names user and verb; those of admission plugins differ.
        return "NotPermitted" if "cannot" in text and "resource" in text else "AdmissionRefused"
    return "Invalid" if isinstance(error, ObjectRefused) else "ServerError"
