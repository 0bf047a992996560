"""The client of Google Cloud Storage and its credentials."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.cloud import storage

_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_PRODUCT = "/sys/class/dmi/id/product_name"
_METADATA_TIMEOUT = 0.25  # seconds; the server answers within milliseconds


def make_client() -> storage.Client:
    """Return a client that threads may share.

    The threads share the connection pool of its ``requests`` session, whose size is set to the
    number of threads. Credentials are searched once; the library alone searches three times,
    which takes half a minute without a network. Objects can be accessed without a project.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        credentials = AnonymousCredentials()
    else:
        logging.getLogger("google.auth").setLevel(logging.ERROR)  # errors say it too
        credentials, _ = google.auth.default(scopes=storage.Client.SCOPE, request=_request())
    session = AuthorizedSession(credentials)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    client = storage.Client(project=None, credentials=credentials, _http=session)
    # The cache is used only for tracing, and requests the bucket after each missing object.
    client._bucket_metadata_cache = None  # noqa: SLF001
    return client


def _request() -> Any:
    """Return the transport for requests of credentials to Google's metadata server.

    The server exists only in Google's data centres; elsewhere three attempts of three seconds would
    time out. The timeout is shortened except on Google's machines and where one is configured.
    """
    from google.auth.transport.requests import Request

    request = Request()

    def request_soon(*args: Any, timeout: float = _METADATA_TIMEOUT, **options: Any) -> Any:
        return request(*args, timeout=min(timeout, _METADATA_TIMEOUT), **options)

    default = "GCE_METADATA_TIMEOUT" in os.environ or _is_googles_machine()
    return request if default else request_soon


def _is_googles_machine() -> bool:
    try:
        with open(_PRODUCT, encoding="utf-8") as file:
            return file.read().startswith("Google")
    except OSError:
        return False
