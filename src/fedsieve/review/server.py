"""The page and what it asks for, over HTTP on this machine."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedsieve.base.ending import as_typed
from fedsieve.review.desk import Desk, Refused, Wish
from fedsieve.review.guard import Guard
from fedsieve.review.material import LARGE, SMALL
from fedsieve.review.pages import FILES, PAGE

SIDES = {"large": LARGE, "small": SMALL}
LARGEST_BODY = 1 << 18
MOST_WISHES, MOST_SAMPLES = 1000, 200
AN_HOUR = "private, max-age=3600"


class Wishes(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    wishes: list[Wish] = Field(min_length=1, max_length=MOST_WISHES)


def review_app(desk: Desk, port: int) -> Guard:
    """All that is served, behind its guard."""

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "review.html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            raise HTTPException(404)
        return FileResponse(FILES[name])

    async def overview(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(desk.overview))

    async def sample(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(desk.sample, request.path_params["row"]))

    async def samples(request: Request) -> Response:
        asked = request.query_params.get("rows", "").split(",")[:MOST_SAMPLES]
        if not all(row.isascii() and row.isdigit() and len(row) < 10 for row in asked):
            raise HTTPException(400)
        return JSONResponse(await run_in_threadpool(desk.samples, [int(row) for row in asked]))

    async def image(request: Request) -> Response:
        row, side = request.path_params["row"], SIDES.get(request.path_params["side"])
        material = desk.subject.material
        if side is None or material.kind != "image" or row >= len(material.where):
            raise HTTPException(404)
        content, kind = await run_in_threadpool(material.picture, row, side)
        return Response(content, media_type=kind, headers={"Cache-Control": AN_HOUR})

    async def decide(request: Request) -> Response:
        wishes = Wishes.model_validate_json(await _body(request)).wishes
        await run_in_threadpool(desk.decide, wishes)
        return JSONResponse({"written": len(wishes)})

    async def estimates(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(desk.estimates))

    routes = [
        Route("/", page),
        Route("/api/overview", overview),
        Route("/api/sample/{row:int}", sample),
        Route("/api/samples", samples),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/api/estimates", estimates),
        Route("/image/{row:int}/{side}", image),
        Route("/{name}", part),
    ]
    handlers = {Refused: _refused, ValidationError: _refused, OSError: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


async def _body(request: Request) -> bytes:
    """What is sent, no more than a page would send."""
    if request.headers.get("content-type") != "application/json":
        raise HTTPException(415)
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_BODY:
            raise HTTPException(413)
    return content


async def _refused(_: Request, __: Exception) -> Response:
    return PlainTextResponse("not understood\n", 400)


async def _broken(_: Request, problem: Exception) -> Response:
    """What the disk refuses must be seen by the reader: the decision is not kept."""
    return PlainTextResponse(f"{as_typed(problem) or 'the disk refuses'}\n", 507)
