"""The page's server: static page, /api/parse, /api/surprisal, /api/generate."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from gpst.cli.arguments import EXIT_USAGE, Parser, model_argument, options_of
from gpst.cli.commands import Opener, open_exported
from gpst.export.errors import ModelFolderError

if TYPE_CHECKING:
    from gpst.api import GPST

PAGE = Path(__file__).with_name("page.html")
MAX_CHARACTERS = 400
MAX_NEW_TOKENS = 60
_BEAM = 20


def create_app(model: "GPST") -> Any:
    """The application (FastAPI). One request computes at a time: the model has one device."""
    from fastapi import Body, FastAPI
    from fastapi.responses import FileResponse, JSONResponse

    from gpst.render import as_svg
    from gpst.search.sampling import Sampling

    app = FastAPI(title="GPST", docs_url=None, redoc_url=None, openapi_url=None)
    lock = Lock()

    def answer(text: str, compute: Callable[[str], dict[str, Any]]) -> Any:
        text = " ".join(text.split())
        if not text:
            return JSONResponse({"error": "write a sentence first"}, 422)
        if len(text) > MAX_CHARACTERS:
            long = f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are allowed"
            return JSONResponse({"error": long}, 422)
        try:
            with lock:
                return compute(text)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 422)

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE, media_type="text/html; charset=utf-8")

    @app.post("/api/parse")
    def parse(text: Annotated[str, Body(embed=True)]) -> Any:
        def compute(text: str) -> dict[str, Any]:
            inside = model.parse(text)
            left = model.parse(text, "left-to-right", beam=_BEAM)
            return {
                name: {"brackets": str(parsed), "svg": as_svg([parsed])}
                for name, parsed in (("inside", inside), ("left_to_right", left))
            }

        return answer(text, compute)

    @app.post("/api/surprisal")
    def surprisal(text: Annotated[str, Body(embed=True)]) -> Any:
        def compute(text: str) -> dict[str, Any]:
            words = model.surprisal([text], beam=_BEAM)
            return {"words": [{"word": word.word, "bits": word.bits} for word in words]}

        return answer(text, compute)

    @app.post("/api/generate")
    def generate(
        text: Annotated[str, Body(embed=True)], seed: Annotated[int, Body(embed=True)] = 0
    ) -> Any:
        def compute(text: str) -> dict[str, Any]:
            [one] = model.generate(
                text,
                max_new_tokens=MAX_NEW_TOKENS,
                sampling=Sampling(temperature=0.8, top_k=40, seed=seed),
                beam=_BEAM,
            )
            return {"text": one.text, "svg": as_svg(one.sentences)}

        return answer(text, compute)

    return app


def main(argv: Sequence[str], opener: Opener = open_exported) -> int:
    """Serves until it is interrupted; `opener`: of what --model names."""
    parser = Parser(
        "python -m launch.demo",
        description="A web page on which a model parses and writes.",
        epilog="example:\n  python -m launch.demo --model runs/demo/exported --port 7860\n\n"
        "exit codes: 0 stopped, 2 wrong usage or model folder",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model_argument(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (this machine's)")
    parser.add_argument("--port", type=int, default=7860, help="to listen on (7860)")
    options = options_of(parser, argv)
    try:
        import uvicorn

        from gpst.api import GPST

        app = create_app(GPST.from_pretrained(opener(options.model), options.device))
    except ImportError as error:
        print(f"demo: {error.name} is missing; pip install 'gpst[web]'", file=sys.stderr)
        return EXIT_USAGE
    except ModelFolderError as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    print(f"http://{options.host}:{options.port}", file=sys.stderr, flush=True)
    try:
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning")
    except SystemExit:  # uvicorn has said why
        return EXIT_USAGE
    return 0
