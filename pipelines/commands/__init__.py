"""What a person types: one module a command, each with ``main(argv) -> exit code``."""
