"""Messages about storages."""

MESSAGES: dict[str, str] = {
    "scheme-unsupported": "{scheme}:// is not supported: use a local path, gs://BUCKET/PATH or s3://BUCKET/PATH.",
    "storage-needs-package": "{scheme}:// needs {package}: pip install 'shardmill[{extra}]'.",
    "bucket-unnamed": "{uri} names no bucket: write {scheme}://BUCKET/PATH.",
    "s3-file-unnamed": "{uri} names no file: write s3://BUCKET/PATH.",
    "bucket-invalid": "{uri}: {bucket!r} is not a valid bucket name; write {scheme}://BUCKET/PATH.",
    "s3-config-invalid": "s3:// cannot be used: {error}; check the AWS_... variables and ~/.aws.",
    "gcs-without-credentials": "Cannot {action} {uri}: there are no usable Google credentials ({reason}); run `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS.",
    "storage-denied": "Cannot {action} {uri}: {why}; check the credentials and ask for that permission.",
    "bucket-missing": "Cannot {action} {uri}: the bucket {bucket!r} does not exist; create it or correct its name.",
    "storage-race": "Cannot {action} {path}: it was replaced at the same time; run again.",
    "storage-failed": "Cannot {action} {path}: {error}; {remedy}.",
}
