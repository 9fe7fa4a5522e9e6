"""What people read: HTML, text, JSON."""
