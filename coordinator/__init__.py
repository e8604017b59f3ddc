"""What makes it true: the only code that touches Docker, processes or object storage."""
