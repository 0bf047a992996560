"""The published state of an output: the manifest and the generation that it names; and sidecars.

Sidecars are small JSON files that mark a file as finished, sealed with their own CRC-32C. One is
written last and create-if-absent. Of several workers that make the same file, the first one wins,
and all continue with its file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import google_crc32c

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.dataset_files import check_dataset_file
from shardmill.schemas.dataset.manifest import CatalogFile, Manifest, Shard
from shardmill.schemas.dataset.shard_names import is_json, list_generations
from shardmill.schemas.errors import FormatError, OutputError
from shardmill.schemas.storage import Storage, join, open_storage, resolve_links, scheme_of

# Files that systems put into folders; a folder with nothing else is empty for a user.
_SYSTEM_FILES = frozenset({"lost+found", "Thumbs.db", "desktop.ini"})
_DEFAULTS = {"label_order": "text"}  # of options that a config has only with other values
_MAX_CHANGED = 4  # options in a message
_MAX_SHOWN = 60  # characters of a value
FORMAT_VERSION = 4  # of shards and sidecars; part of every config_id
T = TypeVar("T")


class Published(NamedTuple):
    """The published state of an output.

    Attributes:
        manifest: The manifest; None if it does not exist or cannot be read.
        version: Version of the manifest's file, for ``Storage.replace_if``, or empty.
    """

    manifest: Manifest | None = None
    version: str = ""


def config_id(
    pipeline: str,
    versions: Mapping[str, str],
    options: Mapping[str, Any],
    format_version: int = FORMAT_VERSION,
) -> str:
    """Return the digest of options, format and codecs: 16 hexadecimal digits.

    Args:
        pipeline: Name of the pipeline.
        versions: Versions of the codecs.
        options: The options that decide the content of the dataset.
        format_version: Version of shards and sidecars.
    """
    body = {
        "pipeline": pipeline,
        "format": format_version,
        "versions": dict(versions),
        "options": dict(options),
    }
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"shardmill-conf").hexdigest()


def read_published(storage: Storage, output: str) -> Published:
    """Read the manifest that is published at an output.

    A file that is not JSON is a damaged manifest if generations are next to it: then nothing is
    published, and the next build replaces the file.

    Raises:
        OutputError: The file is not the manifest of a build, or has another version.
    """
    path = join(output, shard_names.MANIFEST)
    # The version belongs to the bytes that were read: a publisher replaces only what it has seen.
    try:
        check_dataset_file(path)
        data, version = storage.read_version(path)
    except FileNotFoundError:
        return Published()
    except FormatError as error:
        raise _output_manifest_unreadable(path=path, error=error) from error
    try:
        manifest = Manifest.from_json(data)
        check_plain(own_files(manifest))
    except FormatError as error:
        # A torn file, as after a power failure, is not JSON. Any other text may be someone's file.
        if not is_json(data) and list_generations(storage, output):
            return Published(None, version)
        raise _output_manifest_unreadable(path=path, error=error) from error
    if manifest.root:
        raise OutputError(
            f"{path} is the manifest of a count, and its files were not built here: choose another "
            "--output."
        )
    return Published(manifest, version)


def has_catalogs(output: str) -> bool:
    """Return whether a dataset with catalogs is published at an output."""
    if not scheme_of(output) and os.path.isfile(output):
        return False  # the build explains it, as the next error
    try:
        published = read_published(open_storage(output), output).manifest
    except OutputError:
        return False
    return published is not None and bool(published.catalogs)


def check_plain(files: Iterable[str]) -> None:
    """Check that names can be files of a dataset: not hidden, and not in another folder.

    Raises:
        FormatError: A name cannot be.
    """
    for name in files:
        top, *below = name.split("/")
        in_other_folder = bool(below) and top not in (shard_names.TRANSFORM, shard_names.CATALOG)
        hidden = any(not component or component.startswith(".") for component in (top, *below))
        if in_other_folder or hidden or "\0" in name:
            raise FormatError(f"it names {name!r}, which is not a file of a dataset")


def check_no_version(output: str, flag: str = "") -> None:
    """Check that an output is not a version of a dataset, which must never change.

    Args:
        output: The output folder; it need not exist.
        flag: The flag that named it, for the message.

    Raises:
        OutputError: It is, perhaps by a link such as ``current``.
    """
    dataset, _, name = resolve_links(output).rpartition("/")
    if shard_names.is_generation(name):
        raise OutputError(
            f"{flag}{output} is a version of the dataset {dataset}: use {flag}{dataset}."
        )


def open_output(storage: Storage, output: str) -> Published:
    """Read the published state of an output, which need not exist.

    Raises:
        OutputError: The output is not a folder or not a whole dataset, or holds files that
            Shardmill did not write.
    """
    check_no_version(output, "--output=")
    folder = storage.stat(output)
    if folder is None:
        return Published()
    if folder.kind != "dir":
        raise OutputError(f"--output={output} is a file: choose a folder.")
    published = read_published(storage, output)
    # A folder with a manifest is a dataset, also with files of people next to it: they are kept.
    entries = [] if published.version else storage.list_dir(output)
    for entry in entries:
        own = entry.name.startswith(".") or shard_names.is_generation(entry.name)
        if not own and entry.name not in {*_SYSTEM_FILES, shard_names.CURRENT}:
            raise OutputError(
                f"--output={output} holds {entry.name!r} but no manifest.json, so it is not a "
                "Shardmill dataset: choose an empty or new folder."
            )
    if published.manifest is not None and not published.manifest.generation:
        raise OutputError(
            f"--output={output} is a copy of one version of a dataset: choose an empty or new "
            "folder."
        )
    return published


def own_files(manifest: Manifest) -> list[str]:
    """Return the names of all files of a generation except its manifest, sorted."""
    own = {*manifest.files, *manifest.side_files, shard_names.SCHEMA, shard_names.REJECTS}
    own |= {catalog.file for catalog in manifest.catalogs}
    if manifest.labels:
        own.add(shard_names.LABELS)
    return sorted(own)


def find_damage(storage: Storage, folder: str, manifest: Manifest) -> str:
    """Return the first file of a generation that is missing or has another size, or an empty text.

    Costs one listing, or two with a catalog; the content of files is not read.

    Args:
        storage: Storage of the output.
        folder: Folder of the generation.
        manifest: Its manifest.
    """
    sizes = {entry.name: entry.size for entry in storage.list_dir(folder)}
    if manifest.catalogs:
        inside = storage.list_dir(join(folder, shard_names.CATALOG))
        sizes |= {f"{shard_names.CATALOG}/{entry.name}": entry.size for entry in inside}
    listed: list[Shard | CatalogFile] = [*manifest.shards, *manifest.catalogs]
    # Sizes come from one listing: an up-to-date check must not need a call for each shard.
    for file in listed:
        if sizes.get(file.file) != file.bytes:
            return file.file
    # Files in other folders, such as of a transform graph, are few: each is looked up.
    for name in own_files(manifest):
        if name not in sizes and ("/" not in name or storage.stat(join(folder, name)) is None):
            return name
    return ""


def compare_shard(shard: Shard, num_bytes: int, crc32c: str | None) -> str:
    """Return how a file differs from the shard that a manifest lists, or an empty text.

    Args:
        shard: The entry of the manifest.
        num_bytes: Size of the file.
        crc32c: CRC-32C of the file, or None if unknown.
    """
    if num_bytes != shard.bytes:
        return f"it has {num_bytes:,} bytes, the manifest says {shard.bytes:,}"
    if None in (crc32c, shard.crc32c) or crc32c == shard.crc32c:
        return ""
    return (
        f"its CRC-32C is {crc32c}, the manifest says {shard.crc32c}: its bytes changed after they "
        "were written"
    )


def is_shard(path: str, shard: Shard) -> bool:
    """Return whether a file is the shard that a manifest lists.

    The content is read once; some object stores know the checksum.
    """
    storage = open_storage(path)
    # A wrong size needs no read.
    entry = storage.stat(path)
    if entry is None or compare_shard(shard, entry.size, None):
        return False
    return not compare_shard(shard, entry.size, f"{storage.checksum(path):08x}")


def find_sound(storage: Storage, output: str) -> dict[str, Manifest]:
    """Return the generations that can be published again, the latest first, and their manifests."""
    sound = {}
    # A publisher may be writing one of them: its own manifest is there only when it is whole.
    for name in list_generations(storage, output):
        folder = join(output, name)
        with contextlib.suppress(OutputError):
            manifest = read_published(storage, folder).manifest
            if manifest is not None and not find_damage(storage, folder, manifest):
                sound[name] = manifest
    return sound


def find_changed_options(old: Manifest, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a clause for each option that differs from the dataset's options.

    Args:
        old: Manifest of the dataset.
        config: The new options.
    """
    # Options of another release are not compared: their names mean nothing here.
    old_config = old.build.config
    names = [name for name in {**old_config, **config} if name in config or name in _DEFAULTS]
    texts = []
    for name in names:
        default = _DEFAULTS.get(name)
        was, now = old_config.get(name, default), config.get(name, default)
        texts.append((name, _value_text(was), _value_text(now)))
    return tuple(f"{name} was {was}, now {now}" for name, was, now in texts if was != now)


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    if len(text) <= _MAX_SHOWN:
        return text
    return text[:_MAX_SHOWN] + "…"


def why_not_up_to_date(
    storage: Storage,
    output: str,
    old: Manifest,
    config_id: str,
    input_id: str,
    changed: Sequence[str],
    files: str = "",
) -> str:
    """Return why the published dataset is not the wanted one, or an empty text if it is.

    Args:
        storage: Storage of the output.
        output: The output folder.
        old: The published dataset.
        config_id: Identity of the wanted options.
        input_id: Identity of the wanted inputs.
        changed: Options that differ, as clauses.
        files: How many files differ, or empty.
    """
    if not old.is_dataset(config_id, input_id):
        same = old.build.config_id == config_id
        others = () if same else ("another release, schema or codecs",)
        clauses = [*(changed[:_MAX_CHANGED] or others), *filter(None, [files])]
        return describe_other_dataset(output=output, changed="; ".join(clauses) or "other inputs")
    damaged = find_damage(storage, old.folder(output), old)
    if not damaged:
        return ""
    path = join(old.folder(output), damaged)
    return (
        f"{path} is missing or does not have the size in manifest.json: add --overwrite to build "
        "the dataset again."
    )


def describe_other_dataset(output: object, changed: object) -> str:
    """Return the sentence for an output with a dataset of other inputs or options."""
    return (
        f"--output={output} was built from different inputs or options ({changed}): add --update "
        "to publish a new version of it, or choose another folder."
    )


def _output_manifest_unreadable(path: object, error: object) -> OutputError:
    return OutputError(f"{path} cannot be read: {error}; move it away or choose another --output.")


def seal(body: dict[str, Any]) -> bytes:
    """Return the content of a sidecar: the body, and a CRC-32C of it."""
    return _seal(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def _seal(body: bytes) -> bytes:
    return b'%b,"seal":%d}' % (body[:-1], google_crc32c.value(body))


def unseal(data: bytes, load: Callable[[dict[str, Any]], T | None]) -> T | None:
    """Parse a sealed sidecar; None if it is damaged.

    Args:
        data: Content of the sidecar.
        load: See ``find_sidecar``.
    """
    body = data.rpartition(b',"seal":')[0] + b"}"
    try:
        return load(json.loads(body)) if data == _seal(body) else None
    except (TypeError, KeyError, ValueError, AttributeError, FileNotFoundError):
        return None


def find_sidecar(
    storage: Storage, path: str, load: Callable[[dict[str, Any]], T | None]
) -> T | None:
    """Read a sidecar; None if its part or run must be made.

    A sidecar that is damaged, or whose files are missing or damaged, is deleted.

    Args:
        storage: Storage of the build folder.
        path: The sidecar.
        load: Parses the body. Returns None, or raises TypeError, KeyError, ValueError or
            FileNotFoundError, if the body is another version's or its files are not whole.
    """
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    sidecar = unseal(data, load)
    if sidecar is None:
        storage.delete(path)
    return sidecar


def create_sidecar(
    storage: Storage,
    path: str,
    data: bytes,
    own: T,
    find: Callable[[], T | None],
    payload: str = "",
) -> T:
    """Write a sidecar unless another worker was first; return the value of the existing one.

    Args:
        storage: Storage of the build folder.
        path: The sidecar.
        data: Its sealed content.
        own: The value that it describes.
        find: Reads the sidecar of another worker, as ``find_sidecar`` does.
        payload: File of this worker, or empty. Deleted if the sidecar of another worker counts or
            none can be written; an interrupt leaves it to the clean-up after publishing.
    """
    try:
        winner = own if storage.create(path, data) else find()
        if winner is None:  # the files of the other worker are missing or damaged
            storage.create(path, data)
            winner = own
    except Exception:  # such as a full disk: leave no payload that no sidecar names
        if payload and storage.stat(path) is None:
            storage.delete(payload)
        raise
    if payload and winner is not own:
        storage.delete(payload)
    return winner
