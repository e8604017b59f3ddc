"""What `make bench` runs: times and counts on this machine, printed, never asserted."""
