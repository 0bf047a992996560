"""Messages about storages."""

MESSAGES: dict[str, str] = {
    "scheme-unsupported": "{scheme}:// is not supported: use a local path, gs://BUCKET/PATH or s3://BUCKET/PATH.",
    "gcs-needs-package": "gs:// needs google-cloud-storage: pip install 'shardmill[gcs]'.",
    "s3-needs-package": "s3:// needs botocore: pip install 'shardmill[s3]'.",
    "bucket-unnamed": "{uri} names no bucket: write {scheme}://BUCKET/PATH.",
    "gcs-bucket-invalid": "{uri}: {bucket!r} is not a valid bucket name; write gs://BUCKET/PATH.",
    "s3-file-unnamed": "{uri} names no file: write s3://BUCKET/PATH.",
    "s3-bucket-invalid": "{uri}: {bucket!r} is not a bucket name; write s3://BUCKET/PATH.",
    "s3-config-invalid": "s3:// cannot be used: {error}; check the AWS_... variables and ~/.aws.",
    "gcs-without-credentials": "Cannot {action} {uri}: there are no usable Google credentials ({reason}); run `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS.",
    "s3-denied": "Cannot {action} {uri}: {why}; check the credentials and ask for that permission.",
    "gcs-denied": "Cannot {action} {uri}: {error}; ask for that permission.",
    "bucket-missing": "Cannot {action} {uri}: the bucket {bucket!r} does not exist; create it or correct its name.",
    "storage-race": "Cannot {action} {path}: it was replaced at the same time; run again.",
    "gcs-failed": "Cannot {action} {uri}: {error}; run again when the service answers.",
    "storage-failed": "Cannot {action} {path}: {error}; {remedy}.",
}
