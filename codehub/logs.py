"""Structured logs: constant messages with keys, one event a line, JSON for machines or aligned text for people."""

import os
import sys
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
]


def logging_config(level: str, form: str) -> dict[str, Any]:
    """A `dictConfig` for the standard library's logging; also points structlog at it."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_SHARED[:-1], structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    as_json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    renderer: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=_wants_colors())]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _SHARED,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django.server": {"handlers": [], "propagate": True},
            "botocore": {"level": "WARNING"},
            "urllib3": {"level": "WARNING"},
            "docker": {"level": "WARNING"},
            "axes": {"level": "WARNING"},
            "uvicorn": {"level": "WARNING"},
        },
    }


def _wants_colors() -> bool:
    """Colours for a terminal, or where whoever reads our output says that it ends up on one."""
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))
