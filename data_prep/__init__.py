"""Text to verified token shards. See ``python -m data_prep --help`` and docs/."""
