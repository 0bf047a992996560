"""Messages about splits and labels."""

MESSAGES: dict[str, str] = {
    "split-by-and-splits": "--split_by={split_by} and --splits={splits} cannot be combined: leave one of them out.",
    "splits-invalid": "--splits={text}: {item!r} is not NAME:SHARE with a share from 0 to 1, as in train:0.9,validation:0.1; or use directory or listing.",
    "splits-unnamed": "--splits={text} has no names: did you mean {right}?",
    "splits-twice": "--splits={text} names a split twice: give each one share.",
    "splits-sum": "--splits={text} sums to {shown}, not 1: did you mean {right}?",
    "splits-of-arrays": "--splits={splits} does not work for arrays, whose rows have no folders: use shares such as train:0.9,validation:0.1.",
    "splits-listing-of-rows": "--splits=listing is for images: use --split_by=COLUMN for a column of split names.",
    "group-by-useless": "--group_by={group_by} has no effect with --split_by={split_by}: remove it.",
    "group-pattern-invalid": "--group_pattern={group_pattern} is not a regular expression: {error}.",
    "label-pattern-invalid": "--label_pattern={pattern} is not a regular expression: {error}.",
    "label-pattern-without-group": "--label_pattern={pattern} has no group called label: mark the label as in '(?P<label>[^.]+)\\..*'.",
    "label-pattern-useless": "--label_pattern has no use with --label_from={label_from}: use --label_from=directory or filename.",
    "option-file-missing": "--{flag}={path} does not exist: give {remedy}.",
    "option-file-not-utf8": "--{flag}={path} is not UTF-8: give {remedy}.",
    "labels-empty": "--labels={source} is empty: write one label a line.",
    "labels-empty-line": "--labels={source} has an empty line {number}: remove it.",
    "labels-twice": "--labels={source} lists {twice!r} twice: each label has one class id.",
    "splits-problem": "--splits={text}: {problem}.",
}
