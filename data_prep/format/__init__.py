"""The format of datasets on disk; docs/shard_format.md."""
