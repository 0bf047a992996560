"""Match inputs: folders, globs, listings and labels become references."""
