"""Google Cloud Storage: its client, made once a process, and who it says that we are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.cloud import storage

_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_PRODUCT = "/sys/class/dmi/id/product_name"
_PATIENCE = 0.25  # seconds; its answer takes a few thousandths of one


def make_client() -> storage.Client:
    """Returns a client that any number of threads may share.

    The library below it is requests, whose sessions share a pool of connections among threads;
    the pool is made as large as our threads may be many. Credentials are looked for once (the
    library alone would look three times, half a minute where there is no network), and no
    project: none is needed to read and write objects.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        credentials = AnonymousCredentials()
    else:
        credentials, _ = google.auth.default(scopes=storage.Client.SCOPE, request=_request())
    session = AuthorizedSession(credentials)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    client = storage.Client(project=None, credentials=credentials, _http=session)
    # It serves traces only, and asks for the bucket after each object that is not there.
    client._bucket_metadata_cache = None  # noqa: SLF001
    return client


def _request() -> Any:
    """Returns what asks Google's metadata server for credentials, where no others were found.

    There is one in Google's data centres only; elsewhere three tries of three seconds would be
    waited for in vain. On Google's own machines, and where a timeout is set, none is cut short.
    """
    from google.auth.transport.requests import Request

    class Impatient(Request):  # type: ignore[misc, unused-ignore]
        def __call__(self, *args: Any, timeout: float = _PATIENCE, **options: Any) -> Any:
            return super().__call__(*args, timeout=min(timeout, _PATIENCE), **options)

    patient = "GCE_METADATA_TIMEOUT" in os.environ or _is_googles_machine()
    return Request() if patient else Impatient()


def _is_googles_machine() -> bool:
    try:
        with open(_PRODUCT, encoding="utf-8") as file:
            return file.read().startswith("Google")
    except OSError:
        return False
