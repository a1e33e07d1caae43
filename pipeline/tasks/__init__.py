"""What the trainer is used for: one module a task, each with `main(arguments) -> exit code`."""
