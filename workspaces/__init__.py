"""What people ask for: the domain, its service layer and the doors onto it."""
