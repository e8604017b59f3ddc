"""Template tags of the domain's pages."""
