"""The page's server: the page, /api/models, and /api/analyse and /api/continue, which stream."""

import argparse
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from gpst.cli.arguments import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Parser,
    beam_argument,
    model_argument,
    options_of,
    positive,
)
from gpst.cli.commands import Opener, open_exported
from gpst.cli.process import load_torch, loading
from gpst.cli.threads import use_threads
from gpst.export.errors import ModelFolderError

if TYPE_CHECKING:
    from gpst.api import GPST

PAGE = Path(__file__).with_name("page.html")
_PLACES = "there are GET /, GET /api/models, POST /api/analyse and POST /api/continue"


@dataclass(frozen=True)
class Limits:
    """What one request may take."""

    tokens: int = 128
    seconds: float = 30.0
    beam: int = 20


def create_app(models: "dict[str, GPST]", limits: Limits) -> Any:
    """The application (FastAPI). One request computes at a time: the models share a device.

    Args:
        models: by the names that the page shows.
    """
    from fastapi import Depends, FastAPI, Request
    from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

    from gpst.web.analysis import Emit, analyse, continue_text, sentences_of
    from gpst.web.questions import MAX_BYTES, Question, read_question
    from gpst.web.streams import stream

    app = FastAPI(title="GPST", docs_url=None, redoc_url=None, openapi_url=None)
    turn, names = Lock(), list(models)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    async def body_of(request: Request) -> bytes:
        # All of it is received, or the client would see a broken connection and no answer.
        body = bytearray()
        try:
            async for part in request.stream():
                body += part[: MAX_BYTES + 1 - len(body)]
        except ClientDisconnect:
            body.clear()  # nobody reads the answer
        return bytes(body)

    def answer(
        request: Request, body: bytes, compute: "Callable[[GPST, list[Any], Question, Emit], None]"
    ) -> Any:
        try:
            question = read_question(body, len(names))
            model = models[names[question.model]]
            sentences = sentences_of(model, question.text, limits.tokens)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        lines = stream(
            lambda emit: compute(model, sentences, question, emit), request, turn, limits.seconds
        )
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE, media_type="text/html; charset=utf-8")

    @app.get("/api/models")
    def known() -> dict[str, Any]:
        return {
            "models": names,
            "max_tokens": limits.tokens,
            "max_seconds": limits.seconds,
            "beam": limits.beam,
        }

    @app.post("/api/analyse")
    def analysis(request: Request, body: Annotated[bytes, Depends(body_of)]) -> Any:
        return answer(request, body, lambda m, s, _, emit: analyse(m, s, limits.beam, emit))

    @app.post("/api/continue")
    def continuation(request: Request, body: Annotated[bytes, Depends(body_of)]) -> Any:
        return answer(
            request,
            body,
            lambda m, _, q, emit: continue_text(m, q.text, q.seed, limits.beam, emit),
        )

    @app.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
    def unknown(request: Request) -> Any:
        raise HTTPException(404, f"{request.method} {request.url.path} is not here; {_PLACES}")

    return app


def _port(text: str) -> int:
    number = int(text) if text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return number


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "python -m launch.demo",
        description="A web page on which models parse, measure and write.",
        epilog="example:\n  python -m launch.demo --model runs/demo/exported --port 7860\n\n"
        "exit codes: 0 stopped, 2 wrong usage or model folder",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model_argument(parser)
    parser.add_argument(
        "--compare", action="append", default=[], metavar="MODEL", help="another one beside it"
    )
    beam_argument(parser)
    limits = Limits()
    parser.add_argument(
        "--max-tokens", type=positive, default=limits.tokens, help="word pieces of a text (128)"
    )
    parser.add_argument(
        "--max-seconds", type=positive, default=limits.seconds, help="of computing an answer (30)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (this machine's)")
    parser.add_argument("--port", type=_port, default=7860, help="to listen on (7860)")
    return options_of(parser, argv)


def main(argv: Sequence[str], opener: Opener = open_exported) -> int:
    """Serves until it is interrupted; `opener`: of what --model names."""
    options = _options(argv)
    try:
        load_torch("demo")
        with loading("demo"):
            import uvicorn

            from gpst.api import GPST

        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        with socket.create_server((options.host, options.port), family=family) as listener:
            with loading("demo"):
                models = {
                    name: GPST.from_pretrained(opener(path), options.device)
                    for name, path in _named([options.model, *options.compare]).items()
                }
            widest = max(models.values(), key=lambda model: model.model.config.hidden_dim)
            use_threads(widest.model.config.hidden_dim, widest.device)
            limits = Limits(options.max_tokens, options.max_seconds, options.beam)
            with loading("demo"):
                app = create_app(models, limits)
            port = listener.getsockname()[1]
            print(f"http://{options.host}:{port}", file=sys.stderr, flush=True)
            # Whoever still reads a stream when it is interrupted does not hold it up.
            config = uvicorn.Config(
                app, log_config=None, log_level="warning", timeout_graceful_shutdown=1
            )
            uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        _refuse("interrupted")
        return EXIT_INTERRUPTED
    except ImportError as error:
        return _refuse(f"{error.name} is missing; pip install 'gpst[web]'")
    except ModelFolderError as error:
        return _refuse(str(error))
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        place = f"--host {options.host} --port {options.port}"
        return _refuse(f"{place}: cannot listen there ({reason})")
    return 0


def _refuse(reason: str) -> int:
    print(f"demo: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    return EXIT_USAGE


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Paths by names: the last parts that tell them apart."""
    parts = [
        [part for part in Path(os.path.abspath(path)).parts if part not in ("exported", "/")]
        or [path]
        for path in paths
    ]
    longest = max(map(len, parts))
    for length in range(1, longest + 1):
        names = ["/".join(of_path[-length:]) for of_path in parts]
        if len(set(names)) == len(names):
            return dict(zip(names, paths, strict=True))
    return {f"{number}: {path}": path for number, path in enumerate(paths, 1)}
