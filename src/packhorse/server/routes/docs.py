"""GET /docs: the OpenAPI document in Swagger UI, from files of an optional package.

The package is flask-swagger-ui, of which only the files of Swagger UI are read: nothing of it, nor
of Flask, is imported. The page asks no other server for anything.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from packhorse.server.schemas import error_text

SCRIPT, STYLE = "swagger-ui-bundle.js", "swagger-ui.css"
FILES = {SCRIPT: "text/javascript", STYLE: "text/css"}

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Packhorse: the API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""

_START = """\
SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", validatorUrl: null});
"""

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # it sets styles of elements
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


async def docs(request: Request) -> Response:
    """The page; 404 with a hint where the package is not installed."""
    if assets() is None:
        return _missing()
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)


async def docs_file(request: Request) -> Response:
    """A script or the style of the page."""
    name, folder = request.path_params["name"], assets()
    if folder is None:
        return _missing()
    if name == "start.js":
        return Response(_START, media_type="text/javascript", headers=_HEADERS)
    if name not in FILES:
        return Response(error_text("there is no such file", "Validation"), 404, media_type=_JSON)
    return FileResponse(folder / name, media_type=FILES[name], headers=_HEADERS)


@cache
def assets() -> Path | None:
    """The folder with Swagger UI's files; None where there is none."""
    found = find_spec("flask_swagger_ui")
    for place in (found and found.submodule_search_locations) or ():
        folder = Path(place) / "dist"
        if all((folder / name).is_file() for name in FILES):
            return folder
    return None


_JSON = "application/json"


def _missing() -> Response:
    hint = (
        "Swagger UI is not installed on the server: pip install 'packhorse[swagger]'; "
        "the OpenAPI document is at /openapi.json"
    )
    return Response(error_text(hint, "Validation"), 404, media_type=_JSON)
