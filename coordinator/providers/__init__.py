"""The outside world behind two small interfaces: a runtime and an archive store."""
