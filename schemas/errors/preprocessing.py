"""Messages about TensorFlow Transform."""

MESSAGES: dict[str, str] = {
    "preprocessing-needs-package": "--preprocessing needs TensorFlow Transform: pip install 'shardmill[tft]'.",
    "preprocessing-without-train": "--preprocessing analyzes the split train, which is missing from --splits={splits}: add it.",
    "preprocessing-without-rows": "No row is in the split train, which --preprocessing learns from: check --splits.",
    "preprocessing-not-python": "--preprocessing={path} is not valid Python ({problem}): fix it.",
    "preprocessing-without-function": "--preprocessing={path} has no function preprocessing_fn: define preprocessing_fn(inputs), which returns a dict of tensors.",
    "preprocessing-run-failed": "{where}: running the file fails with {error}.",
    "preprocessing-module-missing": "{where}: the module {name!r} is not installed: install it for the command and its workers, or copy its code into the file.",
    "preprocessing-column-unknown": "{where}: preprocessing_fn reads the column {column!r}, which does not exist; the columns of the input are {columns}.",
    "preprocessing-failed": "{where}: preprocessing_fn fails with {error}.",
    "preprocessing-not-dict": "{path}: preprocessing_fn returns {kind}: it must return a dict with a tensor for each feature.",
    "preprocessing-feature-invalid": "{path}: preprocessing_fn returns the feature {name!r} {problem}.",
    "preprocessing-analysis-failed": "The analysis of --preprocessing failed: {problem}; fix preprocessing_fn.",
    "preprocessing-transform-failed": "The transform of --preprocessing fails on some of the rows ({error}): make preprocessing_fn accept all values of the columns.",
    "preprocessing-feature-too-large": "The feature {name!r} takes over 2 GiB in one batch of rows: make it smaller.",
    "preprocessing-label-control": "preprocessing_fn returns the label {label!r}, which has a control character: remove such characters with tf.strings.regex_replace.",
    "preprocessing-rows-differ": "preprocessing_fn returns {found:,} entries of the feature {name!r} for {rows:rows}: every feature must have one entry per row.",
    "preprocessing-sparse-unordered": "preprocessing_fn returns the sparse feature {name!r} with rows out of order: use tf.sparse.reorder.",
    "preprocessing-sparse-gaps": "preprocessing_fn returns the sparse feature {name!r} with gaps between the values of a row, which a record cannot store: make it dense with tf.sparse.to_dense, or set its shape with tft.experimental.annotate_sparse_output_shape.",
    "preprocessing-storage": "--preprocessing cannot have its output on {scheme}:// with workers on other machines, where TensorFlow does not write: leave out --runner, or give an --output on gs:// or in a folder that all workers share.",
}
