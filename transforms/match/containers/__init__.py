"""Archives of inputs: list their members, and read one."""
