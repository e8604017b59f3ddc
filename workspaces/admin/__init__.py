"""The operators' desk: Django admin over what was asked for and what was observed.

A door like any other: every change goes through the service layer, observed columns are read-only everywhere. Importing
this package registers the models and pages.
"""

from workspaces.admin import catalogue, overview, people, records, workspaces

__all__ = ["catalogue", "overview", "people", "records", "workspaces"]
