"""A Django application whose four processes share a cache: `gunicorn -w 4 django_site:application`.

`get_or_set` of limpet's backend lets one process of all compute a value while the others wait.
"""

from __future__ import annotations

import os
import time

from django.conf import settings
from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

POOL = os.environ.get("LIMPET_SITE", "shm://example-frameworks")
RENDER_S = 0.02
TTL_S = 2

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["127.0.0.1"],
    CACHES={
        "default": {
            "BACKEND": "limpet.adapters.django.LimpetCache",
            "LOCATION": f"{POOL}/pages",
            "OPTIONS": {"MAX_ENTRIES": 10_000},
        }
    },
)


def page(request: HttpRequest, number: int) -> HttpResponse:
    def render() -> str:
        time.sleep(RENDER_S)
        return f"<h1>page {number}</h1>"

    found = cache.get_or_set(f"page-{number}", render, TTL_S)
    return HttpResponse(found, headers={"X-Worker": str(os.getpid())})


urlpatterns = [path("page/<int:number>", page)]
application = get_wsgi_application()
