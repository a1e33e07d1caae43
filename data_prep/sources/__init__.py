"""Sources of documents: text, JSON lines, parquet, archives, ..."""
