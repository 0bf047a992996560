"""The rules of Google Cloud Storage that the emulator does not enforce.

Generation preconditions on every kind of call, and permissions, which a test may withdraw. They
follow the reference of the service's JSON API. A precondition that Shardmill does not use is
answered with 501.
"""

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tests.support.fault_proxy import Answer, Forward

_READS = ("get", "download")


def error_answer(status: int, message: str) -> Answer:
    """Return an error in the format of the service."""
    body = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(body).encode())


class Call:
    """One call of the API.

    Attributes:
        kind: ``upload``, ``upload_chunk``, ``download``, ``get``, ``list``, ``compose``,
            ``rewrite``, ``delete``, ``bucket``, ``batch`` or ``other``.
        bucket: Bucket of the object.
        name: The object; for ``list`` the prefix.
        query: Its parameters.
        target: Target of a rewrite: (bucket, name).
    """

    def __init__(self, method: str, path: str, body: bytes = b"") -> None:
        self.method, self.path, self.body = method, path, body
        parts = urllib.parse.urlsplit(path)
        self.query = {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}
        found = re.fullmatch(
            r"(.*?)/b/([^/]+)/o(?:/([^/]+))?(?:/(compose|rewriteTo|copyTo)(.*))?", parts.path
        )
        where, self.bucket, name, action, rest = found.groups() if found else ("", "", "", "", "")
        self.name = urllib.parse.unquote(name or "")
        self.name = self.name or self.query.get("name", "") or self.query.get("prefix", "")
        self.target = ("", "")
        if rest:
            bucket, target = re.fullmatch(r"/b/([^/]+)/o/(.+)", rest).groups()
            self.target = bucket, urllib.parse.unquote(target)
        said = re.search(rb'"name": ?("(?:[^"\\]|\\.)*")', body[:4096])
        if where.startswith("/upload") and said:
            self.name = json.loads(said.group(1))
        self.kind = self._kind(method, parts.path, where, bool(name), action)

    def _kind(self, method: str, path: str, where: str, named: bool, action: str | None) -> str:
        if action:
            return {"compose": "compose"}.get(action, "rewrite")
        if path.startswith("/upload/resumable") or (
            where.startswith("/upload") and method == "PUT"
        ):
            return "upload_chunk"
        if where.startswith("/upload"):
            return "upload"
        if not self.bucket:
            return "bucket" if re.fullmatch(r".*/b(/[^/]+)?", path) else "other"
        if not named:
            return "list"
        if method == "GET":
            return "download" if self.query.get("alt") == "media" else "get"
        return "delete" if method == "DELETE" else "other"

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The sources of a compose."""
        return json.loads(self.body)["sourceObjects"] if self.kind == "compose" else []

    @property
    def written(self) -> tuple[str, str]:
        """Bucket and name of the object that the call reads or writes."""
        return self.target if self.kind == "rewrite" else (self.bucket, self.name)


class Rules:
    """Carries calls out on an emulator by the rules of the service.

    Attributes:
        page_size: Objects on a page of a listing, or None for the emulator's own.
        granted: Permissions that the caller has, or None for all.
        needed: Permissions that calls needed so far.
    """

    def __init__(self) -> None:
        self.url = ""
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Reset the options that tests set."""
        self.page_size: int | None = None
        self.granted: set[str] | None = None
        self.needed: set[str] = set()

    def carry_out(self, call: Call, headers: dict[str, str], forward: Forward) -> Answer:
        """Return the answer of the service to a call."""
        if call.kind in ("other", "bucket"):
            return forward(call.method, call.path, call.body, headers)
        if call.kind == "list":
            return self._list(call, headers, forward)
        with self.lock:  # the check and the call are atomic
            wrong = self._check(call, forward)
            if wrong is not None:
                return wrong
            return self._as_served(forward(call.method, call.path, call.body, headers))

    # Checks before a call

    def _check(self, call: Call, forward: Forward) -> Answer | None:
        """Return the rejection of a call, or None."""
        found = self._find(*call.written, forward)
        wrong = self._forbidden(call, found)
        if wrong is not None:
            return wrong
        if call.kind == "compose":
            wrong = self._wrong_sources(call, forward)
            if wrong is not None:
                return wrong
        if call.kind in (*_READS, "delete") and found is None:
            return error_answer(404, f"No such object: {call.bucket}/{call.name}")
        return _unmet(call.query, found)

    def _wrong_sources(self, call: Call, forward: Forward) -> Answer | None:
        sources = call.sources
        if not sources:
            return error_answer(400, "You must provide at least one source component.")
        for source in sources:
            if {key for key, value in source.items() if value} != {"name"}:
                return error_answer(501, "conditions of sources are not implemented")
            if self._find(call.bucket, source["name"], forward) is None:
                return error_answer(404, f"No such object: {call.bucket}/{source['name']}")
        return None

    # Permissions

    def _forbidden(self, call: Call, found: dict[str, Any] | None) -> Answer | None:
        for permission, bucket in self.permissions(call, found):
            self.needed.add(permission)
            if self.granted is not None and permission not in self.granted:
                return error_answer(
                    403,
                    f"user@example.com does not have {permission} access to the Google "
                    f"Cloud Storage {'bucket' if permission.endswith('list') else 'object'} in "
                    f"{bucket}. Permission '{permission}' denied on resource (or it may not exist).",
                )
        # Without that permission, the service does not report whether an object exists.
        if found is None and call.kind in _READS:
            self.needed.add("storage.objects.list")
            if self.granted is not None and "storage.objects.list" not in self.granted:
                return error_answer(
                    403,
                    "user@example.com does not have storage.objects.list access to the "
                    f"Google Cloud Storage bucket {call.bucket}.",
                )
        return None

    def permissions(self, call: Call, found: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
        """Yield the permissions that a call needs: (permission, bucket)."""
        for kind, permission in (
            ("download", "get"),
            ("get", "get"),
            ("delete", "delete"),
            ("compose", "get"),
            ("rewrite", "get"),
            ("list", "list"),
        ):
            if call.kind == kind:
                yield f"storage.objects.{permission}", call.bucket
        if call.kind in ("upload", "compose", "rewrite"):
            yield "storage.objects.create", call.written[0]
            # Overwriting an object deletes the old one.
            if found is not None and call.query.get("ifGenerationMatch") != "0":
                yield "storage.objects.delete", call.written[0]

    # Answers

    def _list(self, call: Call, headers: dict[str, str], forward: Forward) -> Answer:
        wrong = self._forbidden(call, None)
        if wrong is not None:
            return wrong
        path = call.path
        asked = int(call.query.get("maxResults") or 0)
        if self.page_size and (not asked or asked > self.page_size):
            path = re.sub(r"&?maxResults=\d+", "", path)
            path += f"{'&' if '?' in path else '?'}maxResults={self.page_size}"
        return self._as_served(forward(call.method, path, call.body, headers))

    def _as_served(self, answer: Answer) -> Answer:
        """Return an answer whose links do not bypass the proxy."""
        if "json" not in _header(answer.headers, "content-type"):
            return answer
        link = rb'("mediaLink": ?")https?://[^/]+'
        return answer._replace(body=re.sub(link, rb"\1" + self.url.encode(), answer.body))

    # Objects

    def _find(self, bucket: str, name: str, forward: Forward) -> dict[str, Any] | None:
        if not name:
            return None
        path = f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
        answer = forward("GET", path, b"", {})
        return json.loads(answer.body) if answer.status == 200 else None


def _header(headers: dict[str, str], name: str) -> str:
    return next((v for k, v in headers.items() if k.lower() == name), "")


def _unmet(query: dict[str, Any], found: dict[str, Any] | None) -> Answer | None:
    """Return the rejection of a call whose precondition does not hold, or None."""
    for name in query:
        if name == "sourceGeneration" or (name.startswith("if") and name != "ifGenerationMatch"):
            return error_answer(501, f"{name} is not implemented")
    wanted = query.get("ifGenerationMatch")
    if wanted in (None, "0" if found is None else str(found["generation"])):
        return None
    return error_answer(412, "conditionNotMet")
