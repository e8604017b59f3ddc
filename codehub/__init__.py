"""CodeHub's wiring: settings, routing, processes. No business rules live here."""

__version__ = "0.1.0"
