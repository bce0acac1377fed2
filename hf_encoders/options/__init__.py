"""Options of the commands, and what can be checked of them before torch and transformers are imported.

A file is a command: its docstring is the command's help, `add_arguments` its options, and `check` refuses paths, names
and packages that are wrong. Nothing here imports more than the standard library, PyYAML and modules that do the same.
"""
