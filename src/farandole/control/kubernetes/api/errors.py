"""What goes wrong between us and the API server.

ApiError (Exception)      the API server, or the way to it, said no
├── NotFound              there is no such object, or no such kind
│   └── NoSuchKind        the server does not know the kind, or not yet: it says nothing of objects
├── Conflict              the object was changed, or is there already
├── Gone                  what a watch was to go on from is no longer known (410)
├── Refused               this object cannot be made as it is: quota, admission, rights, validity
└── Unavailable           an outage: no answer, an error of the server's own, or too many requests
    ├── NotSent           there was no connection, so the server knows nothing of the request
    └── Silent            nothing has come for as long as we wait
"""

from __future__ import annotations

from farandole.errors import Picklable


class ApiError(Picklable, Exception):
    """The API server, or the way to it, said no.

    Attributes:
        code: the status code of HTTP, 0 if there was no answer.
        retry_after: seconds after which the server wants to be asked again, None if it did not say.
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
    """The object was changed meanwhile, or is there already."""


class Gone(ApiError):
    """What a watch was to go on from is no longer known: everything has to be listed again."""


class Refused(ApiError):
    """The object cannot be made as it is."""


class Unavailable(ApiError):
    """There was no answer, or one that says nothing of the object."""


class NotSent(Unavailable):
    """There was no connection, so the server knows nothing of the request."""


class Silent(Unavailable):
    """Nothing has come for as long as we wait."""


def from_answer(code: int, message: str, retry_after: float | None = None) -> ApiError:
    """Return the error that an answer of the API server means."""
    # The first is what a server says that knows the group, the second what one says that does not.
    if code == 404 and ("could not find the requested resource" in message or "page not found" in message):
        return NoSuchKind(code, message, retry_after)
    kinds = {404: NotFound, 409: Conflict, 410: Gone, 429: Unavailable, 401: Unavailable}
    kind = kinds.get(code, Refused if 400 <= code < 500 else Unavailable)
    return kind(code, message, retry_after)


def reason_of(error: ApiError) -> str:
    """Return why an object could not be made, as a reason of the condition Blocked."""
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
        # The authorizer says who may not do what; an admission plugin says something else.
        return "NotPermitted" if "cannot" in text and "resource" in text else "AdmissionRefused"
    return "Invalid" if isinstance(error, Refused) else "ServerError"
