"""A FastAPI application whose four processes share a cache: `uvicorn --workers 4 fastapi_site:app`.

`get_or_compute_async` lets one task of all processes compute a value while the others wait, without
blocking the event loop.
"""

from __future__ import annotations

import asyncio
import os

from fastapi import FastAPI, Response

import limpet

POOL = os.environ.get("LIMPET_SITE", "shm://example-frameworks")
RENDER_S = 0.02
TTL_S = 2

app = FastAPI()
pool = limpet.open(POOL, create=True)
pages: limpet.Cache[int, str] = pool.cache("pages", max_items=10_000)


@app.get("/page/{number}")
async def page(number: int) -> Response:
    async def render() -> str:
        await asyncio.sleep(RENDER_S)
        return f"<h1>page {number}</h1>"

    found = await pages.get_or_compute_async(number, render, ttl=TTL_S)
    return Response(found, media_type="text/html", headers={"X-Worker": str(os.getpid())})
