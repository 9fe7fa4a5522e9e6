"""What runs next on a replica, one policy a file."""
