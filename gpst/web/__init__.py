"""A small web page over an exported model; needs the extra `web` (FastAPI and uvicorn)."""
